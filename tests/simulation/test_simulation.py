"""Changing jobs in a simulated world: thousands of schedules of faults, and deliberate faults that must be found.

``python -m tests.simulation`` runs more of them. A schedule that fails here is shown by ``--from SEED --seeds 1``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Dict, List

import pytest

from tests.simulation.faults import RANK_SENDS, STORE_SENDS, Fault, Schedule, draw
from tests.simulation.mutants import MUTANTS
from tests.simulation.runs import play, shrunk

ROOT = Path(__file__).parents[2]
MOST = 100_000  # events in which a mutant must be found

#: What must have happened in the schedules of the fast tier, so that their success means something.
SOMETIMES = [
    "a generation was decided",
    "a newcomer has caught up",
    "a rank took the state of another",
    "a store was elected",
    "an operation was broken off",
    "left_out: it was asked to leave",
    "struck at accept",
    "struck at commit",
    "struck at go",
    "struck at prepare",
    "struck at promise",
]
#: What thousands of schedules more must have brought: a fault at each message, among others.
SELDOM = [
    *SOMETIMES,
    "a store was superseded",
    "a store could not be reached",
    "hosts did not hear each other",
    "nobody had the state",
    *(f"struck at {kind}" for kind in (*RANK_SENDS, *STORE_SENDS)),
]


def run(first: int, count: int, *, liveness: bool) -> Dict[str, int]:
    counts: Dict[str, int] = Counter()
    for seed in range(first, first + count):
        outcome = play(draw(seed), liveness=liveness)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        counts.update(outcome.counts)
    return counts


def missing(counts: Dict[str, int], names: List[str]) -> List[str]:
    return [name for name in names if counts[name] == 0]


def test_nothing_wrong_happens() -> None:
    assert missing(run(0, 100, liveness=False), SOMETIMES) == []


def test_a_core_that_is_healed_goes_on() -> None:
    assert missing(run(200_000, 80, liveness=True), SOMETIMES) == []


@pytest.mark.slow
def test_nothing_wrong_happens_in_many_more_schedules() -> None:
    assert missing(run(1000, 3000, liveness=False), SELDOM) == []


@pytest.mark.slow
def test_a_core_that_is_healed_goes_on_in_many_more_schedules() -> None:
    # The rarest fault, that at caught_up, strikes once in some 550 schedules: nine times in these.
    assert missing(run(212_000, 3000, liveness=True), SELDOM) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_deliberate_fault_is_found(name: str) -> None:
    mutant, events = MUTANTS[name], 0
    seed = mutant.first
    with mutant.inside():
        while events < MOST:
            outcome = play(draw(seed, mutant.faults), liveness=seed % 2 == 1)
            events += outcome.events
            if outcome.violation:
                break
            seed += 1
    assert outcome.violation and events < MOST
    correct = play(draw(seed, mutant.faults), liveness=seed % 2 == 1)
    assert not correct.violation, "the machines fail without the fault, too"


def test_a_quiet_job_trains() -> None:
    outcome = play(Schedule(1, (2, 2), faulty_until=5.0), liveness=True)
    assert (outcome.violation, outcome.counts) == ("", {})


def test_a_run_depends_on_its_schedule_only() -> None:
    """Also over processes, whose sets and dictionaries have other orders."""
    code = "from tests.simulation.faults import draw; from tests.simulation.runs import play\n"
    code += "print([play(draw(seed), liveness=True).digest for seed in range(20, 30)])"
    here = str([play(draw(seed), liveness=True).digest for seed in range(20, 30)])
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        line = [sys.executable, "-c", code]
        ended = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=True)
        assert ended.stdout.strip() == here


def test_other_seeds_are_other_runs() -> None:
    assert len({play(draw(seed)).digest for seed in range(20)}) == 20


def test_a_schedule_that_fails_is_made_small() -> None:
    faults = tuple(Fault("join" if place != 7 else "crash", float(place), place) for place in range(12))
    small = shrunk(Schedule(0, (2, 2), faults=faults), lambda each: any(f.kind == "crash" for f in each.faults))
    assert (small.faults, small.ranks_of_hosts) == ((faults[7],), (4,))


def test_a_fault_that_is_found_is_shown_small() -> None:
    """What made the fault come out stays; all else goes."""
    with MUTANTS["go_before_all_are_ready"].inside():
        schedule = next(draw(seed) for seed in range(100) if play(draw(seed)).violation)
        rule = play(schedule).rule
        small = shrunk(schedule, lambda each: play(each).rule == rule)
        assert rule == "7 ready before go" and play(small).rule == rule
    assert 1 <= len(small.faults) <= 2
