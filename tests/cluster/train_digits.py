"""Trains a network on the handwritten digits so that any number of ranks takes the very steps of one process.

Every batch of 64 is shared out; averaging the ranks' gradients gives that of the whole batch, up to rounding. Prints
the loss on all digits and the length of the weights' vector, by which runs are compared. With numpy alone, so that
eight ranks have begun after a second on two cores.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

import ddl

BATCH = 64
SHAPES = ((64, 96), (96,), (96, 10), (10,))


def digits() -> np.ndarray:
    """Return scikit-learn's file of them, 1797 x (64 pixels and the digit); to import it takes longer than to train."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None and spec.origin is not None
    return np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float32)


def loss_and_gradients(weights: list, x: np.ndarray, y: np.ndarray) -> tuple:
    """Return the mean cross entropy of ``softmax(tanh(x w + b) v + c)``, and its gradient for each of the weights."""
    w, b, v, c = weights
    hidden = np.tanh(x @ w + b)
    scores = hidden @ v + c
    likelihood = np.exp(scores - scores.max(axis=1, keepdims=True))
    likelihood /= likelihood.sum(axis=1, keepdims=True)
    loss = -float(np.log(likelihood[np.arange(len(y)), y]).mean())
    of_scores = (likelihood - np.eye(10, dtype=np.float32)[y]) / len(y)
    of_hidden = of_scores @ v.T * (1 - hidden**2)
    return loss, [x.T @ of_hidden, of_hidden.sum(axis=0), hidden.T @ of_scores, of_scores.sum(axis=0)]


def main() -> None:
    ddl.init()
    data = digits()
    x, y = data[:, :64] / 16, data[:, 64].astype(np.int64)
    random = np.random.default_rng(1 + ddl.rank())  # other weights on each rank, until they are broadcast
    weights = [random.uniform(-0.1, 0.1, shape).astype(np.float32) for shape in SHAPES]
    momenta = [np.zeros_like(weight) for weight in weights]
    for weight in weights:
        ddl.broadcast_(weight, root=0)
    order = np.random.default_rng(3).permutation(len(x))
    for start in range(0, len(x) - BATCH, BATCH):
        own = order[start : start + BATCH][ddl.rank() :: ddl.size()]
        _, gradients = loss_and_gradients(weights, x[own], y[own])
        for weight, momentum, gradient in zip(weights, momenta, gradients):
            momentum *= 0.9
            momentum += ddl.allreduce(gradient)
            weight -= 0.2 * momentum
    if ddl.rank() == 0:
        length = float(np.linalg.norm(np.concatenate([weight.ravel() for weight in weights])))
        print(f"RESULT {ddl.size()} {loss_and_gradients(weights, x, y)[0]:.7f} {length:.7f}")


if __name__ == "__main__":
    main()
