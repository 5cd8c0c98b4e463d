"""Trains a small network on the UCI handwritten digits in JAX and Optax, by a loop for one process and five lines more.

    python examples/jax_optax_digits.py
    ddlrun -np 2 examples/jax_optax_digits.py

Lines that a script for one machine would not have are marked (DDL). Each rank compiles its own step, for its share of
the batch; the gradients are averaged by `ddl_jax`. The 1797 real digits (8 x 8 pixels) ship inside scikit-learn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, List, Tuple

import ddl_jax as ddl  # (DDL) isort: skip
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

TEST_SHARE = 5  # every fifth digit is kept for the test
Parameters = List[Tuple[Any, Any]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits in JAX, with DDL.")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="digits of all ranks in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate (%(default)s)")
    parser.add_argument("--width", type=int, default=256, help="units of a hidden layer (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser.parse_args()


def network(width: int) -> Parameters:
    random = np.random.default_rng(1)
    sizes = [64, width, width, 10]
    return [
        (jnp.asarray(random.normal(size=shape) * np.sqrt(2 / shape[0]), jnp.float32), jnp.zeros(shape[1]))
        for shape in zip(sizes, sizes[1:])
    ]


def apply(parameters: Parameters, x: Any) -> Any:
    for weights, bias in parameters[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    return x @ parameters[-1][0] + parameters[-1][1]


def loss_of(parameters: Parameters, x: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(apply(parameters, x), y).mean()


def main() -> None:
    args = arguments()
    ddl.init()  # (DDL)
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype("float32"), labels.astype("int32")
    test = np.arange(len(x)) % TEST_SHARE == 0
    optimizer = optax.chain(ddl.average_gradients(), optax.adam(args.lr))  # (DDL) instead of optax.adam(args.lr)
    parameters = ddl.broadcast_parameters(network(args.width))  # (DDL)
    state = optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, ddl.allreduce(loss)  # (DDL) of all ranks

    shuffle = np.random.default_rng(1)
    losses: List[float] = []
    for _ in range(args.epochs):
        order = shuffle.permutation(np.flatnonzero(~test))
        for start in range(0, len(order) - args.batch_size + 1, args.batch_size):
            batch = order[start : start + args.batch_size]
            batch = np.array_split(batch, ddl.size())[ddl.rank()]  # (DDL)
            parameters, state, loss = step(parameters, state, x[batch], y[batch])
            losses.append(float(loss))
    right = float((np.asarray(apply(parameters, x[test])).argmax(1) == y[test]).mean())
    if ddl.rank() == 0:  # (DDL)
        print(f"{ddl.size()} ranks: loss {losses[-1]:.4f}, {right:.1%} of the test digits right")
        if args.json:
            results = {"processes": ddl.size(), "loss": losses[-1], "accuracy": right}
            Path(args.json).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
