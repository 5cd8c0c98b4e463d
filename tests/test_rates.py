"""``StepRates``: how long two ranks wait, also on communicators of their own, and what a new one does not change."""

from __future__ import annotations

import time

import numpy as np
import pytest
import ranks
from own_record import own_record

import ddl
from ddl.adapter.rates import StepRates

pytestmark = pytest.mark.processes
STEPS, SLOW = 10, 0.02


class CheckedRates:
    """Reads rates, and holds them against clocks around the reading: so it does not matter how busy the machine is."""

    def __init__(self) -> None:
        self.before = time.monotonic()
        self.rates = StepRates()
        self.after = time.monotonic()

    def read(self, steps: int, waited: float) -> float:
        """Return the waiting of so many steps, in which this rank has ``waited`` so many seconds."""
        shortest = time.monotonic() - self.after
        before, read = time.monotonic(), self.rates.read()
        longest = time.monotonic() - self.before
        self.before, self.after = before, time.monotonic()
        assert steps / longest <= read["steps_per_second"] <= steps / shortest
        assert (
            min(1.0, waited / longest) - 1e-9 <= read["waiting"] <= min(1.0, waited / shortest) + 1e-9
        )  # sums of floats
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
        began = ddl.metrics().waited_seconds
        communicator = ddl.split(0) if number else ddl.world()
        for _ in range(STEPS):
            in_order(communicator)
            checked.rates.note()
        assert checked.rates.steps == STEPS
        communicator.barrier()  # a lane counts a wait after it has told its caller; who comes next finds it counted
        waited = ddl.metrics().waited_seconds - began + (communicator.metrics().waited_seconds if number else 0.0)
        waiting += checked.read(STEPS, waited)
        if number:
            communicator.close()
    checked = CheckedRates()  # to close a communicator may have taken a wait
    time.sleep(0.1)
    assert checked.read(0, 0.0) == 0.0
    ddl.shutdown()
    for too_late in (checked.rates.read, StepRates):
        with pytest.raises(ddl.InvalidState):
            too_late()
    return waiting


def test_the_rank_that_others_wait_for_waits_least() -> None:
    fast, slow = ranks.run(2, on_several_communicators)
    assert fast > slow
