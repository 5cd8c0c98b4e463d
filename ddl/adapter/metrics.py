"""Averages metrics (loss, accuracy, …) over the ranks: ``average_metrics`` at once, ``MetricAverage`` over batches.

Numbers may be a framework's tensors of one element. This uses only methods that numpy's arrays have, too.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Dict, List, Mapping, Optional

import numpy as np

import ddl

__all__ = ["MetricAverage", "average_metrics"]

Scalar = Any  #: an int, a float, or an array or tensor of one element


def average_metrics(
    metrics: Mapping[str, Scalar], *, weight: Scalar = 1, communicator: Optional[ddl.Communicator] = None
) -> Dict[str, float]:
    """Return the mean of each metric over all ranks, weighted: the same numbers on every rank. Collective, blocking.

    metrics: name -> number, or tensor of one element; the same names on every rank, in any order.
    weight: how much this rank counts, from 0 on: its number of samples. A rank of weight 0 may bring NaN: not counted.

    All metrics travel as float64 in one all-reduce, after one of two numbers that compares the names. Raises
    ``InvalidArgument``, on all ranks, if names differ, if anything is not one number, or if all weights are 0.

    >>> average_metrics({"loss": loss, "accuracy": right / len(x)}, weight=len(x))
    """
    communicator = ddl.world() if communicator is None else communicator
    names = sorted(metrics, key=repr)
    # A rank that finds a mistake must not leave the others waiting: it says so where they look for the names.
    mistake, sums = "", np.zeros(len(names) + 1)
    try:
        sums[-1] = _number(weight, "weight")
        if not 0 <= sums[-1] < math.inf:
            raise ddl.InvalidArgument(f"weight={weight!r} must be a number from 0 on")
        numbers = [_number(metrics[name], repr(name)) for name in names]
        if sums[-1]:
            sums[:-1] = np.array(numbers) * sums[-1]
    except ddl.InvalidArgument as error:
        mistake = str(error)
    _check_names([repr(name) for name in names], mistake, communicator)
    communicator.allreduce_(sums, op=ddl.Sum)
    if sums[-1] == 0:
        raise ddl.InvalidArgument("average_metrics: the weights of all ranks are 0, so there is no mean")
    means = dict(zip(names, (sums[:-1] / sums[-1]).tolist()))
    return {name: means[name] for name in metrics}


class MetricAverage:
    """The weighted mean of metrics over many batches and all ranks. Used by one thread.

    Between ``update`` calls nothing is communicated, so ranks may have different numbers of batches, even none.

    >>> average = MetricAverage("loss", "accuracy")
    >>> for x, y in loader:
    ...     average.update({"loss": loss, "accuracy": accuracy}, weight=len(x))
    >>> print(average.compute())
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._sums = dict.fromkeys(self._names, 0.0)
        self._weight = 0.0

    def update(self, metrics: Mapping[str, Scalar], *, weight: Scalar = 1) -> None:
        """Add the metrics of one batch: exactly those that were named; ``weight``: its number of samples.

        Not collective. Raises ``InvalidArgument``, with nothing changed.
        """
        if set(metrics) != set(self._names):
            raise ddl.InvalidArgument(
                f"MetricAverage of {sorted(self._names)} was given {sorted(metrics)}; the names must be the same"
            )
        count = _number(weight, "weight")
        if not 0 <= count < math.inf:
            raise ddl.InvalidArgument(f"MetricAverage: weight={weight!r} must be a number from 0 on")
        numbers = {name: _number(value, repr(name)) for name, value in metrics.items()}
        if count:
            self._weight += count
            for name, number in numbers.items():
                self._sums[name] += count * number

    def compute(self, *, communicator: Optional[ddl.Communicator] = None) -> Dict[str, float]:
        """Return the means over all batches of all ranks since ``reset``. Collective, as ``average_metrics``."""
        means = {name: total / (self._weight or 1.0) for name, total in self._sums.items()}
        return average_metrics(means, weight=self._weight, communicator=communicator)


def _number(value: Any, what: str) -> float:
    try:
        if hasattr(value, "item"):
            value = value.item()  # one element, or an error
        elif hasattr(value, "__array__"):
            value = np.asarray(value).item()
        if isinstance(value, (str, bytes)):  # which float() would parse
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        raise ddl.InvalidArgument(f"{what} is a {type(value).__name__}{shape}, not one number") from None


def _check_names(names: List[str], mistake: str, communicator: ddl.Communicator) -> None:
    """Raise ``InvalidArgument``, on all ranks, unless all have the same names and no mistake."""
    digest = hashlib.sha256(repr((names, mistake)).encode()).digest()
    number = int.from_bytes(digest[:8], "little", signed=True)
    extremes = np.array([number, ~number])  # the largest of ~n is ~ the smallest of n
    communicator.allreduce_(extremes, op=ddl.Max)
    if extremes[0] == ~extremes[1] and not mistake:
        return
    everybody = communicator.allgather_object((names, mistake))
    for rank, (theirs, wrong) in enumerate(everybody):
        if wrong:
            raise ddl.InvalidArgument(f"average_metrics: on rank {rank} {wrong}")
        for present, other, having, lacking in ((everybody[0][0], theirs, 0, rank), (theirs, everybody[0][0], rank, 0)):
            missing = [name for name in present if name not in other]
            if missing:
                raise ddl.InvalidArgument(
                    f"average_metrics: rank {having} has the metric {missing[0]}, rank {lacking} has not; pass the "
                    "same metrics on every rank"
                )
