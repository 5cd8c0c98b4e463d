"""Trains a small network on the UCI handwritten digits in JAX, as JAX's own pages do on several hosts.

    ddlrun --jax -np 2 examples/jax_digits.py

Nothing in it is DDL's: `ddlrun --jax` says to `jax.distributed.initialize()` which processes there are, and its
collectives on CPUs are DDL's. The array of images is spread over the processes, a compiled step sees the whole batch,
and the compiler puts the all-reduce of the gradients in. The 1797 real digits (8 x 8 pixels) ship inside scikit-learn.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

TEST_SHARE = 5  # every fifth digit is kept for the test
Parameters = List[Tuple[Any, Any]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits in JAX.")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="digits of all processes in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate (%(default)s)")
    parser.add_argument("--width", type=int, default=256, help="units of a hidden layer (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser.parse_args()


def network(width: int) -> Parameters:
    random = np.random.default_rng(1)  # the same weights in all processes
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
    jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype("float32"), labels.astype("int32")
    test = np.arange(len(x)) % TEST_SHARE == 0
    optimizer = optax.adam(args.lr)
    parameters = jax.device_put(network(args.width), everywhere)
    state = jax.jit(optimizer.init, out_shardings=everywhere)(parameters)

    @functools.partial(jax.jit, out_shardings=everywhere)
    def step(parameters: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, updates), state, loss

    def part(whole: np.ndarray) -> Any:
        """Return the batch as one array, of which this process gives its rows."""
        rows = np.array_split(whole, jax.process_count())[jax.process_index()]
        return jax.make_array_from_process_local_data(spread, rows)

    shuffle = np.random.default_rng(1)
    losses: List[float] = []
    for _ in range(args.epochs):
        order = shuffle.permutation(np.flatnonzero(~test))
        for start in range(0, len(order) - args.batch_size + 1, args.batch_size):
            batch = order[start : start + args.batch_size]
            parameters, state, loss = step(parameters, state, part(x[batch]), part(y[batch]))
            losses.append(float(loss))
    own = jax.tree.map(lambda array: array.addressable_data(0), parameters)
    right = float((np.asarray(apply(own, x[test])).argmax(1) == y[test]).mean())
    results: Dict[str, Any] = {"processes": jax.process_count(), "loss": losses[-1], "accuracy": right}
    if jax.process_index() == 0:
        print(f"{results['processes']} processes: loss {losses[-1]:.4f}, {right:.1%} of the test digits right")
        if args.json:
            Path(args.json).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
