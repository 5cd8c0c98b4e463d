"""``StepRates``: how long two ranks wait, also on communicators of their own, and what a new one does not change."""

from __future__ import annotations

import itertools
import time
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np
import pytest
import ranks
from own_record import own_record

import ddl
from ddl.adapter.rates import StepRates

pytestmark = pytest.mark.processes
STEPS, SLOW = 10, 0.02


class Moment(NamedTuple):
    """When this rank was asked, and what it had waited by then in each communicator, the world first."""

    time: float
    waited: List[float]

    @classmethod
    def now(cls, communicators: Sequence[ddl.Communicator]) -> Moment:
        return cls(time.monotonic(), [each.metrics().waited_seconds for each in communicators])

    def since(self, earlier: Moment) -> Tuple[float, float]:
        """Return how much time has passed, and how much of it this rank has waited; new communicators begin with 0."""
        pairs = itertools.zip_longest(self.waited, earlier.waited, fillvalue=0.0)
        return self.time - earlier.time, sum(now - before for now, before in pairs)


class CheckedRates:
    """Reads rates, and holds them against what is asked before and after the reading.

    So it does not matter how busy the machine is, or when a lane counts a wait, which it does after it has told its
    caller that the wait is over. Hence all communicators that may have waited must be there still.
    """

    def __init__(self, communicators: Sequence[ddl.Communicator]) -> None:
        self.communicators = communicators
        self.before = Moment.now(communicators)
        self.rates = StepRates()
        self.after = Moment.now(communicators)

    def read(self, steps: int) -> float:
        """Return the waiting of so many steps."""
        before, read, after = Moment.now(self.communicators), self.rates.read(), Moment.now(self.communicators)
        (shortest, least), (longest, most) = before.since(self.after), after.since(self.before)
        self.before, self.after = before, after
        assert steps / longest <= read["steps_per_second"] <= steps / shortest
        rounding = 1e-9  # sums of floats
        assert min(1.0, least / longest) - rounding <= read["waiting"] <= min(1.0, most / shortest) + rounding
        assert read["late_seconds"] == 0.0
        return read["waiting"]


def in_order(communicator: ddl.Communicator) -> None:
    """Reduce something; rank 1 comes when rank 0 has been waiting for a while, however busy the machine is."""
    if ddl.rank() == 1:
        ranks.meet()
        time.sleep(SLOW)
        communicator.allreduce_(np.ones(10))
        return
    work = communicator.allreduce_async_(np.ones(10))
    while all(lane.waiting_since is None for each in own_record().communicators for lane in each.lanes.values()):
        time.sleep(0.001)
    ranks.meet()
    work.wait()


def on_several_communicators() -> float:
    communicators = [ddl.world()]
    checked, waiting = CheckedRates(communicators), 0.0
    for number in range(3):
        if number:
            communicators.append(ddl.split(0))
        for _ in range(STEPS):
            in_order(communicators[-1])
            checked.rates.note()
        assert checked.rates.steps == STEPS
        waiting += checked.read(STEPS)
    for communicator in communicators[1:]:
        communicator.close()
    checked = CheckedRates(communicators[:1])
    for _ in range(2):  # to close a communicator may have taken a wait, which is counted in the first reading
        time.sleep(0.05)
        idle = checked.rates.read()["waiting"]
    assert idle == 0.0
    ddl.shutdown()
    for too_late in (checked.rates.read, StepRates):
        with pytest.raises(ddl.InvalidState):
            too_late()
    return waiting


def test_the_rank_that_others_wait_for_waits_least() -> None:
    fast, slow = ranks.run(2, on_several_communicators)
    assert fast > slow
