"""The real Perfetto opens what ``ddlrun --timeline`` writes, and finds in it what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
from launch.browser import NEEDS_BROWSER, browser
from launch.launcher import Launcher
from launch.perfetto import NEEDS_PERFETTO, perfetto
from timelines import events_of, names, slices

pytestmark = [pytest.mark.processes, pytest.mark.slow, NEEDS_BROWSER, NEEDS_PERFETTO]

PROGRAM = """
import numpy as np, ddl
from ddl.adapter.step_record import note_step
ddl.init()
array = np.ones(1 << 16, np.float32)
for step in range(20):
    time.sleep(0.03 if rank == 1 else 0.005)
    works = [ddl.world().allreduce_async_(array[at : at + 4096], name=f"part {at}") for at in (0, 4096)]
    [work.wait() for work in works]
    note_step()
"""


def test_a_job(launcher: Launcher, script: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    done = launcher.run("-np", "2", "--timeline", str(file), script(PROGRAM))
    assert done.returncode == 0, done.stderr
    events = events_of(file)
    with browser() as chromium, perfetto(chromium, file) as viewer:
        # What it could not use, or took for broken. Counts of other severities are no complaints.
        assert (
            viewer.query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
        )
        (count,) = viewer.query("select count(1) from slice")
        assert count == [len(slices(events))]
        assert viewer.query("select name from process where name glob 'rank*' order by name") == [
            [n] for n in sorted(names(events))
        ]
        (steps,) = viewer.query("select count(1) from slice where category = 'step'")
        assert steps == [2 * 19]
        arrows = sum(event["ph"] == "s" for event in events)
        assert viewer.query("select count(1) from flow") == [[arrows]] and arrows > 10
        waits = (
            "select count(1) from slice wait join slice call on wait.parent_id = call.id where wait.name glob 'waits*'"
        )
        assert viewer.query(waits) == [[len(slices(events, "wait"))]]
