"""Trains a small network on the UCI handwritten digits in Theano, by a loop of one's own, on one rank or many.

    python examples/theano_digits.py
    ddlrun -np 2 examples/theano_digits.py

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Lines that a script for one
machine would not have are marked (DDL). All ranks together do the same work whatever their number: every batch is
shared out among them, so N ranks take the very steps of one process, up to rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import theano
import theano.tensor as T
from sklearn.datasets import load_digits

import ddl_theano as ddl

TEST_SHARE = 5  # every fifth digit is kept for the test
Digits = Tuple[np.ndarray, np.ndarray]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits in Theano, with DDL.")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="digits of all ranks in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--width", type=int, default=512, help="units of a hidden layer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and order (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser.parse_args()


def digits() -> Tuple[Digits, Digits]:
    """Return images and labels for training and for the test; which are which does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16.0).astype("float32"), labels.astype("int32")
    test = np.arange(len(x)) % TEST_SHARE == 0
    return (x[~test], y[~test]), (x[test], y[test])


def network(x: Any, width: int, random: np.random.RandomState) -> Tuple[Any, List[Any]]:
    """Return what the network makes of ``x``, the probabilities of the ten digits; and its parameters."""
    sizes = [64, width, width, 10]
    parameters = []
    for i, (above, below) in enumerate(zip(sizes, sizes[1:])):
        weights = random.normal(size=(above, below)) * np.sqrt(2.0 / above)
        parameters += [
            theano.shared(weights.astype("float32"), f"weights {i}"),
            theano.shared(np.zeros(below, "float32"), f"bias {i}"),
        ]
        x = T.dot(x, parameters[-2]) + parameters[-1]
        x = T.nnet.relu(x) if below != 10 else T.nnet.softmax(x)
    return x, parameters


def momentum(gradients: Sequence[Any], parameters: Sequence[Any], lr: float) -> Dict[Any, Any]:
    """Return the updates of stochastic gradient descent with a momentum of 0.9."""
    updates = OrderedDict()
    for gradient, parameter in zip(gradients, parameters):
        velocity = theano.shared(np.zeros_like(parameter.get_value()))
        updates[velocity] = np.float32(0.9) * velocity - np.float32(lr) * gradient
        updates[parameter] = parameter + updates[velocity]
    return updates


def main() -> None:
    options = arguments()
    ddl.init()  # (DDL)
    (images, labels), (test_images, test_labels) = digits()
    random = np.random.RandomState(options.seed)

    x, y = T.fmatrix("x"), T.ivector("y")
    probabilities, parameters = network(x, options.width, random)
    loss = T.nnet.categorical_crossentropy(probabilities, y).mean()
    gradients = ddl.allreduce(T.grad(loss, parameters))  # (DDL)
    updates = momentum(gradients, parameters, options.lr)
    profile = theano.compile.ProfileStats(atexit_print=False)
    step = theano.function([x, y], loss, updates=updates, profile=profile)
    guess = theano.function([x], probabilities.argmax(axis=1))
    ddl.broadcast_parameters(updates, root=0)  # (DDL)

    steps = len(images) // options.batch_size
    begin = time.perf_counter()
    for epoch in range(options.epochs):
        losses = ddl.MetricAverage("loss")  # (DDL)
        order = random.permutation(len(images))  # the same on all ranks, which have the same seed
        for batch in order[: steps * options.batch_size].reshape(steps, -1):
            own = batch[ddl.rank() :: ddl.size()]  # (DDL)
            losses.update({"loss": step(images[own], labels[own])}, weight=len(own))
        mean = losses.compute()["loss"]
        if ddl.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{options.epochs}: training loss {mean:.4f}", flush=True)
    seconds = time.perf_counter() - begin

    share = slice(ddl.rank(), None, ddl.size())  # (DDL)
    right = guess(test_images[share]) == test_labels[share]
    accuracy = ddl.average_metrics({"accuracy": right.mean()}, weight=len(right))["accuracy"]  # (DDL)
    if ddl.rank() == 0:
        rate = options.epochs * steps * options.batch_size / seconds
        print(f"training loss {mean:.4f}, test accuracy {accuracy:.2%}, {rate:.0f} images/s")
        if options.json:
            averaging = sum(took for op, took in profile.op_time().items() if type(op).__name__ == "AllReduce")
            result = {"ranks": ddl.size(), "loss": mean, "accuracy": accuracy, "images_per_s": rate}
            result["communicating"] = averaging / seconds if ddl.size() > 1 else 0.0
            Path(options.json).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
