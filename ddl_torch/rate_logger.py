"""``RateLogger``: steps per second, waiting and lateness of a rank in TensorBoard, beside the loss."""

from __future__ import annotations

from typing import Any, Optional, Protocol

import ddl
from ddl.adapter.rates import StepRates

__all__ = ["RateLogger", "ScalarWriter"]


class ScalarWriter(Protocol):
    """What has the ``add_scalar`` of ``torch.utils.tensorboard.SummaryWriter``, as tensorboardX's has."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: Optional[int] = None) -> Any:
        """Write a number."""


class RateLogger:
    """Write how fast this rank trains, each ``every`` steps. Call ``step`` after each step. Not collective.

    writer: a ``SummaryWriter``; None: this rank writes nothing, as most scripts have a writer on rank 0 only. To see
        who is late, give each rank a writer with a folder of its own.
    every: steps between two values; each is the mean of these steps.
    prefix: of the tags ``ddl/steps_per_second``, ``ddl/waiting`` (the part of the time in which nothing moved in
        collectives, 0 to 1) and ``ddl/late_seconds`` (how late this rank comes to each of them, 0 if it is not late).

    A step is a call here. Make it after ``ddl_torch.init()``, right before the first step. Raises ``InvalidArgument``
    if ``every`` is no number from 1 on, ``InvalidState`` before ``init``.

    >>> logger = ddl_torch.RateLogger(SummaryWriter(f"runs/rank{ddl_torch.rank()}"))
    >>> logger.step()
    """

    def __init__(self, writer: Optional[ScalarWriter], *, every: int = 10, prefix: str = "ddl") -> None:
        if not isinstance(every, int) or every < 1:
            raise ddl.InvalidArgument(f"RateLogger: every={every!r} is not a number of steps from 1 on")
        self._writer = writer
        self._every = every
        self._prefix = prefix
        self._rates = StepRates()
        self._count = 0

    def step(self, global_step: Optional[int] = None) -> None:
        """Note that a step has ended. ``global_step``: its number in TensorBoard; default: calls so far."""
        self._count += 1
        if self._writer is None:
            return
        self._rates.note()
        if self._rates.steps < self._every:
            return
        number = self._count if global_step is None else global_step
        for name, value in self._rates.read().items():
            self._writer.add_scalar(f"{self._prefix}/{name}", value, number)
