"""Trains a classifier of the UCI handwritten digits on the workers of Dask, as ranks of DDL.

    python examples/dask_digits.py                         # two workers on this machine
    python examples/dask_digits.py tcp://scheduler:8786    # a cluster that runs

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Lines that a script without DDL
would not have are marked (DDL).
"""

from __future__ import annotations

import argparse
from typing import Tuple

import numpy as np
from distributed import Client
from sklearn.datasets import load_digits

import ddl
import ddl.dask


def train(steps: int, rate: float) -> Tuple[float, bytes]:
    """Train on this rank's share of the digits; return the accuracy on the others, and the weights."""
    images, labels = load_digits(return_X_y=True)
    x, y = images / 16.0, np.eye(10)[labels]
    test = np.arange(len(x)) % 5 == 0
    own_x = x[~test][ddl.rank() :: ddl.size()]  # (DDL)
    own_y = y[~test][ddl.rank() :: ddl.size()]  # (DDL)
    weights = np.zeros((64, 10))
    for _ in range(steps):
        scores = np.exp(own_x @ weights)
        gradient = own_x.T @ (scores / scores.sum(axis=1, keepdims=True) - own_y) / len(own_x)
        ddl.allreduce_(gradient)  # (DDL) the average over all ranks
        weights -= rate * gradient
    accuracy = np.mean((x[test] @ weights).argmax(axis=1) == labels[test])
    return float(accuracy), weights.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits on the workers of Dask, with DDL.")
    parser.add_argument("scheduler", nargs="?", help="address of a scheduler; without: two workers on this machine")
    parser.add_argument("--steps", type=int, default=200, help="of gradient descent (%(default)s)")
    parser.add_argument("--rate", type=float, default=2.0, help="learning rate (%(default)s)")
    arguments = parser.parse_args()
    local = dict(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with Client(arguments.scheduler) if arguments.scheduler else Client(**local) as client:
        results = ddl.dask.run(client, train, args=(arguments.steps, arguments.rate))  # (DDL) was client.submit
    for rank, (accuracy, weights) in enumerate(results):
        same = "the same weights as rank 0" if weights == results[0][1] else "other weights than rank 0"
        print(f"rank {rank} of {len(results)}: accuracy {accuracy:.3f}, {same}")


if __name__ == "__main__":
    main()
