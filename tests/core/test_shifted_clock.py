"""Hours pass in no time: where the clock of a process is shifted, what waits by it comes to its end at once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected

import ddl
from ddl import _core, clock
from ddl.adapter.calls import calls_of
from ddl.bootstrap.stragglers import INTERVAL, Stragglers

HOURS = 7200.0


@pytest.fixture(autouse=True)
def shifted_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_shift", 0.0)


def test_it_jumps_ahead() -> None:
    before = clock.now()
    clock.shift(HOURS)
    assert clock.now() >= before + HOURS


def waiting_for_hours() -> str:
    def let_time_pass() -> None:
        while not ddl.world()._core.sleepers():
            time.sleep(0.001)
        _core.shift_clock(HOURS + 1)  # once: the store has as long as ever to say who is to blame

    try:
        if ddl.rank() == 0:
            threading.Thread(target=let_time_pass, daemon=True).start()
            ddl.allreduce_(np.ones(1000))
        while True:  # this rank never comes
            calls_of(ddl.world()).check()
            time.sleep(0.01)
    except ddl.CollectiveTimeout as error:
        return str(error)


@pytest.mark.processes
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_deadline_of_two_hours(transport: str) -> None:
    texts = ranks.run(2, waiting_for_hours, **connected(transport, DDL_TIMEOUT=str(HOURS)))
    assert "[rank 0/2" in texts[0] and "Timed out waiting for rank 1" in texts[0], texts
    assert "gave" in texts[1] or "given this rank up" in texts[1], texts


@pytest.mark.processes
def test_a_rank_reports_its_pace_by_the_clock() -> None:
    ddl.init()
    try:
        stragglers = Stragglers(0, 1, str)
        stragglers.watch(0, ddl.world()._core)
        ddl.barrier()
        first = stragglers.report()
        assert first is not None and first["operations"] >= 1
        ddl.barrier()
        assert stragglers.report() is None and 0 < stragglers.patience() <= INTERVAL
        clock.shift(INTERVAL)
        second = stragglers.report()
        assert second is not None and second["operations"] == first["operations"] + 1
        assert second["now_us"] - first["now_us"] >= 1e6 * INTERVAL
    finally:
        ddl.shutdown()
