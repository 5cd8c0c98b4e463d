"""Trains a small convolutional network on the UCI handwritten digits by Chainer's Trainer and ChainerMN, on DDL.

    python examples/chainer_digits.py
    ddlrun -np 2 examples/chainer_digits.py

The 1797 real digits (8 x 8 pixels) are part of scikit-learn, so nothing is downloaded. Lines that a script for one
process would not have are marked: (DDL) for DDL's lines, (MN) for those of every ChainerMN script. Each batch is
divided among the ranks, so N ranks take the same steps as one process, up to rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Tuple

import chainer
import chainermn
import numpy as np
from chainer import functions as F
from chainer import links as L
from chainer.training import extensions
from sklearn.datasets import load_digits

import ddl_chainer

TEST_SHARE = 5  # every fifth digit is kept for the test
Digits = Tuple[np.ndarray, np.ndarray]


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=8, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="digits of all ranks in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (%(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and order (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error(f"argument --epochs: {options.epochs} is not 2 or more: the first one is not measured")
    return options


def digits() -> Tuple[Digits, Digits]:
    """Return images and labels for training and for the test. The split does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    x = (images / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels.astype(np.int32)
    test = np.arange(len(x)) % TEST_SHARE == 0
    return (x[~test], y[~test]), (x[test], y[test])


class Network(chainer.Chain):
    def __init__(self, width: int) -> None:
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(1, width, 3, pad=1)
            self.second = L.Convolution2D(width, 2 * width, 3, pad=1)
            self.third = L.Convolution2D(2 * width, 4 * width, 3, pad=1)
            self.hidden = L.Linear(16 * width, 4 * width)
            self.last = L.Linear(4 * width, 10)

    def forward(self, x: np.ndarray) -> chainer.Variable:
        x = F.max_pooling_2d(F.relu(self.second(F.relu(self.first(x)))), 2)
        x = F.max_pooling_2d(F.relu(self.third(x)), 2)
        return self.last(F.relu(self.hidden(x)))


class Clock:
    """Counts images, and the seconds of averaging gradients, from the second epoch on."""

    def __init__(self) -> None:
        self._begin = self._end = self._averaging = 0.0
        self._images = 0

    @contextlib.contextmanager
    def averaging(self) -> Iterator[None]:
        """Time the block inside. It includes waiting for a slower rank."""
        begin = time.perf_counter()
        yield
        self._averaging += time.perf_counter() - begin

    def epoch_ends(self, images: int) -> None:
        self._end = time.perf_counter()
        if self._begin:
            self._images += images
        else:
            self._begin, self._averaging = self._end, 0.0

    def results(self) -> Dict[str, float]:
        seconds = self._end - self._begin
        return {"images_per_s": self._images / seconds, "communicating": self._averaging / seconds}


def report(options: argparse.Namespace, rank: int, ranks: int, clock: Clock, loss: float, accuracy: float) -> None:
    """Print the results, which are the same on all ranks, and write them to the file of ``--json``."""
    measured = clock.results()
    if rank == 0:
        print(f"training loss {loss:.4f}, test accuracy {accuracy:.2%}, {measured['images_per_s']:.0f} images/s")
        if options.json:
            results: Dict[str, Any] = {"ranks": ranks, "loss": loss, "accuracy": accuracy, **measured}
            if ranks == 1:
                results["communicating"] = 0.0  # a single rank does not average
            Path(options.json).write_text(json.dumps(results), encoding="utf-8")


def main() -> None:
    options = arguments("Train a small network on handwritten digits by Chainer's Trainer and ChainerMN, with DDL.")
    chainer.disable_experimental_feature_warning = True  # of ChainerMN's iterator
    comm = ddl_chainer.create_communicator("ddl")  # (DDL) in place of chainermn.create_communicator("naive")
    np.random.seed(options.seed)
    train, test = digits()

    model = L.Classifier(Network(options.width))
    optimizer = chainer.optimizers.Adam(options.lr)
    optimizer = chainermn.create_multi_node_optimizer(optimizer, comm)  # (MN)
    optimizer.setup(model)

    iterator = chainer.iterators.SerialIterator(chainer.datasets.TupleDataset(*train), options.batch_size)
    iterator = chainermn.iterators.create_synchronized_iterator(iterator, comm)  # (MN) the same order on all ranks

    def share(batch: Any, device: Any) -> Any:
        return chainer.dataset.concat_examples(batch[comm.rank :: comm.size], device)  # (MN)

    updater = chainer.training.StandardUpdater(iterator, optimizer, converter=share)
    trainer = chainer.training.Trainer(updater, (options.epochs, "epoch"), out=".")

    own_test = chainermn.scatter_dataset(chainer.datasets.TupleDataset(*test), comm)  # (MN)
    tests = chainer.iterators.SerialIterator(own_test, len(own_test), repeat=False, shuffle=False)
    evaluator = extensions.Evaluator(tests, model)
    evaluator = chainermn.create_multi_node_evaluator(evaluator, comm)  # (MN)
    trainer.extend(evaluator, trigger=(options.epochs, "epoch"))
    log = extensions.LogReport(log_name=None)  # without a file
    trainer.extend(log)
    if comm.rank == 0:  # (MN) one rank shows progress
        trainer.extend(extensions.PrintReport(["epoch", "main/loss", "validation/main/accuracy"]))

    clock, average = Clock(), comm.multi_node_mean_grad

    def timed(*arguments: Any) -> None:
        with clock.averaging():
            average(*arguments)

    comm.multi_node_mean_grad = timed
    trainer.extend(lambda _: clock.epoch_ends(len(train[0])), name="clock", trigger=(1, "epoch"), priority=1000)
    trainer.run()

    loss = comm.allreduce_obj(log.log[-1]["main/loss"]) / comm.size  # (MN)
    report(options, comm.rank, comm.size, clock, loss, float(log.log[-1]["validation/main/accuracy"]))


if __name__ == "__main__":
    main()
