"""``python -m benchmarks stragglers``: its simulated jobs say what real ones would, and it runs as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import numpy as np
import pytest

from benchmarks.stragglers.simulated import HEALTHY, SimulatedJob, jobs, judge, late_after, slowed
from ddl.store.pace import Pace

ROOT = Path(__file__).resolve().parents[2]
JOB = SimulatedJob(ranks=4, period=0.02, seconds=60.0, operation=0.002)


def chance() -> np.random.Generator:
    return np.random.default_rng(5)


def test_each_rank_says_what_only_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """``Pace`` refuses anything else; in all, a rank is in operations for what it does not need itself."""
    said: Dict[int, List[Dict[str, int]]] = {}
    received = Pace.received

    def heard(pace: Pace, rank: int, message: Dict[str, int]) -> object:
        said.setdefault(rank, []).append(message)
        return received(pace, rank, message)

    monkeypatch.setattr(Pace, "received", heard)
    own = HEALTHY["quiet"](JOB, chance())
    assert judge(JOB, own, chance()).first == {}
    assert set(said) == set(range(JOB.ranks))
    for rank, messages in said.items():
        assert len(messages) > 20
        last = messages[-1]
        needed = own[: last["operations"], rank].sum()
        assert last["under_way_us"] == pytest.approx(last["now_us"] - 1e6 * needed, abs=0.05e6)


def test_a_rank_that_is_slower_is_found_alone_and_by_how_much() -> None:
    own = HEALTHY["crowded"](JOB, chance())
    verdicts = judge(JOB, slowed(own, 2, 0.5), chance())
    assert late_after(verdicts, 2) is not None and late_after(verdicts, 1) is None
    assert verdicts.last[2] == pytest.approx(0.5 * own.mean(), rel=0.2)


@pytest.mark.slow
def test_nobody_is_late_in_healthy_jobs() -> None:
    """Pauses, wandering speeds and neighbours that move about: once, one job of a hundred was accused."""
    accused = [kind for kind, job, luck in jobs(120, 60.0, 7) if judge(job, HEALTHY[kind](job, luck), luck).first]
    assert accused == []


@pytest.mark.slow
@pytest.mark.processes
def test_a_few_jobs() -> None:
    few = ["--simulated", "6", "--real", "1", "--real-seconds", "2", "--rounds", "1"]
    line = [sys.executable, "-m", "benchmarks", "stragglers", *few]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nobody was accused in a healthy job" in done.stdout
    assert "6 healthy jobs, simulated, of 60 s each" in done.stdout and "1 healthy jobs on this machine" in done.stdout
    assert re.search(r"\n +8 +64 MiB +[0-9.]+ m?s +[0-9.]+ m?s +[0-9.]+\n", done.stdout)
