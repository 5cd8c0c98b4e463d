"""``StepRates``: how long two ranks wait, also on communicators of their own, and what a new one does not change."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import pytest
import ranks
from own_record import own_record

import ddl
from ddl.adapter.rates import StepRates

pytestmark = pytest.mark.processes
STEPS, SLOW = 10, 0.02


class Moment(NamedTuple):
    """What this rank has waited so far, in all communicators and in the world's, and when it was asked."""

    time: float
    waited: float
    of_world: float

    @classmethod
    def now(cls, *others: ddl.Communicator) -> Moment:
        world = ddl.metrics().waited_seconds
        return cls(time.monotonic(), world + sum(each.metrics().waited_seconds for each in others), world)


class CheckedRates:
    """Reads rates, and holds them against what is asked before and after the reading.

    So it does not matter how busy the machine is, or when a lane counts a wait, which it does after it has told its
    caller that the wait is over.
    """

    def __init__(self) -> None:
        self.before = Moment.now()
        self.rates = StepRates()
        self.after = Moment.now()

    def read(self, steps: int, *others: ddl.Communicator) -> float:
        """Return the waiting of so many steps; ``others``: communicators made meanwhile. Only the world goes on."""
        before, read, after = Moment.now(*others), self.rates.read(), Moment.now(*others)
        shortest, longest = before.time - self.after.time, after.time - self.before.time
        least, most = before.waited - self.after.of_world, after.waited - self.before.of_world
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
    checked, waiting = CheckedRates(), 0.0
    for number in range(3):
        communicator = ddl.split(0) if number else ddl.world()
        for _ in range(STEPS):
            in_order(communicator)
            checked.rates.note()
        assert checked.rates.steps == STEPS
        waiting += checked.read(STEPS, *([communicator] if number else []))
        if number:
            communicator.close()
    checked = CheckedRates()
    for _ in range(2):  # to close a communicator may have taken a wait, which is counted in the first reading
        time.sleep(0.05)
        idle = checked.read(0)
    assert idle == 0.0
    ddl.shutdown()
    for too_late in (checked.rates.read, StepRates):
        with pytest.raises(ddl.InvalidState):
            too_late()
    return waiting


def test_the_rank_that_others_wait_for_waits_least() -> None:
    fast, slow = ranks.run(2, on_several_communicators)
    assert fast > slow
