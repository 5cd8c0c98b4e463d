"""Trains on the digits by a loop of one's own, without ChainerMN: a hook of the optimizer averages the gradients.

    python examples/chainer_plain_digits.py
    ddlrun -np 2 examples/chainer_plain_digits.py

Data, network and options are those of chainer_digits.py. Lines that a script for one machine would not have are marked
(DDL).
"""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np
from chainer import links as L
from chainer_digits import Clock, Network, arguments, digits, report

import ddl
import ddl_chainer


class TimedAverage(ddl_chainer.AverageGradients):
    """The hook, with a clock; without one it is ``optimizer.add_hook(ddl_chainer.AverageGradients())``."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def __call__(self, optimizer: Any) -> None:
        with self._clock.averaging():
            super().__call__(optimizer)


def main() -> None:
    options = arguments("Train a small network on handwritten digits by a loop, with DDL.")
    ddl.init()  # (DDL)
    np.random.seed(options.seed + ddl.rank())  # other weights on each rank, until they are broadcast
    (x, y), test = digits()

    clock, model = Clock(), L.Classifier(Network(options.width))
    optimizer = chainer.optimizers.Adam(options.lr).setup(model)
    ddl_chainer.broadcast_parameters(model)  # (DDL)
    optimizer.add_hook(TimedAverage(clock))  # (DDL)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-5))  # sees averages, as it comes later

    order = np.random.RandomState(options.seed)  # the same on all ranks
    for epoch in range(options.epochs):
        losses = []
        batches = np.split(order.permutation(len(x)), range(options.batch_size, len(x), options.batch_size))
        for batch in batches[: len(x) // options.batch_size]:
            own = batch[ddl.rank() :: ddl.size()]  # (DDL)
            optimizer.update(model, x[own], y[own])
            losses.append(float(model.loss.array))
        loss = float(ddl.allreduce(np.mean(losses)))  # (DDL)
        clock.epoch_ends(len(losses) * options.batch_size)
        if ddl.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{options.epochs}: training loss {loss:.4f}", flush=True)

    own = slice(ddl.rank(), None, ddl.size())  # (DDL)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        right = (model.predictor(test[0][own]).array.argmax(1) == test[1][own]).sum()
    right = ddl.allreduce(right, op=ddl.Sum)  # (DDL)
    report(options, ddl.rank(), ddl.size(), clock, loss, float(right / len(test[0])))


if __name__ == "__main__":
    main()
