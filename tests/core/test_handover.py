"""Which way a large private array goes to other ranks of its host: both are tried, and the quicker one is kept."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Callable, List, Tuple

import numpy as np
import pytest
import ranks

import ddl
from ddl import _core

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"

Play = Callable[..., List[str]]

BEFORE_FIRST = 4  # operations of a size before its first trial
SETTLED = 8  # operations between a trial and its result
FIRST_PAUSE, LAST_PAUSE = 8, 128  # operations before another trial, for each operation of one in one way


def each_way(nbytes: int) -> int:
    """Return the operations of a trial in one way: three that count, after as many as staging needs to go round."""
    return 3 + 5 + ((4 << 20) >> (nbytes.bit_length() - 1))


def trial(nbytes: int, way: str) -> str:
    other = "k" if way == "s" else "s"
    return way * each_way(nbytes) + other * each_way(nbytes) + way * SETTLED


def first_operations(nbytes: int, way: str) -> str:
    return way * BEFORE_FIRST + trial(nbytes, way)


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Return a function that plays phases and returns a letter for each operation of each phase."""
    program = tmp_path_factory.mktemp("handover") / "handover_choice"
    sources = [HERE / "handover_choice.cc", CSRC / "engine" / "handover.cc"]
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "no C++ compiler"
    command = [compiler, "-std=c++17", "-O1", f"-I{CSRC}", "-o", str(program), *map(str, sources)]
    subprocess.run(command, check=True, timeout=240)

    def play_phases(first: str, *phases: Tuple[int, int, int, int]) -> List[str]:
        arguments = [",".join(map(str, phase)) for phase in phases]
        return subprocess.run(
            [str(program), first, *arguments], check=True, capture_output=True, text=True, timeout=60
        ).stdout.split()

    return play_phases


@pytest.mark.parametrize("kib", [64, 2 << 10, 32 << 10, 4 << 20])
@pytest.mark.parametrize("first", ["s", "k"])
@pytest.mark.parametrize(("other", "changes"), [(60, True), (94, True), (96, False), (100, False), (170, False)])
def test_the_quicker_way_is_kept(play: Play, kib: int, first: str, other: int, changes: bool) -> None:
    expected = first_operations(kib << 10, first)
    staging, kernel = (100, other) if first == "s" else (other, 100)
    (ways,) = play(first, (len(expected) + 50, kib, staging, kernel))
    kept = first if not changes else "k" if first == "s" else "s"
    assert ways == expected + kept * 50


def test_another_trial_finds_that_it_has_changed(play: Play) -> None:
    kib, n = 4 << 10, each_way(4 << 20)
    start = len(first_operations(4 << 20, "s"))
    first, then, last = play("s", (start + 10, kib, 100, 80), (10 * n, kib, 80, 100), (10 * n, kib, 100, 100))
    assert first.endswith("k" * 10)
    assert then.count("s") > n and then.endswith("s")
    assert last.count("k") in (0, n)  # neither is quicker


def test_trials_become_rare(play: Play) -> None:
    kib, n = 4 << 10, each_way(4 << 20)
    (ways,) = play("s", (5000, kib, 100, 120))
    pauses = [len(part) for part in ways.split("k" * n)][1:-1]
    extra = SETTLED + n  # behind a trial, and its own operations in the way of now
    expected = [extra + n * pause for pause in (8, 16, 32, 64, 128, 128, 128)]
    assert len(pauses) >= 6 and pauses == expected[: len(pauses)]


def test_each_size_has_a_trial_of_its_own(play: Play) -> None:
    small, large = 2 << 10, 16 << 10
    first, then, again = play("s", (60, small, 100, 80), (60, large, 100, 120), (10, small, 100, 80))
    assert first.endswith("k" * 20) and again == "k" * 10
    assert then == (first_operations(16 << 20, "s") + "s" * 60)[:60]


def ways_of(verb: str, nbytes: int, calls: int) -> str:
    """Make so many calls on private arrays; return the way of each: k if the kernel has copied, on this rank."""
    pattern = np.resize(np.arange(251, dtype=np.uint8), nbytes)
    x, out = np.zeros(nbytes, np.uint8), np.zeros(nbytes * ddl.size(), np.uint8)
    ddl.barrier()
    ways = ""
    for call in range(calls):
        rank = ddl.rank() if verb == "allgather" else 0
        x[:] = pattern ^ np.uint8(call + rank) if rank == ddl.rank() else 0
        before = _core.kernel_reads()[1] + _core.kernel_writes()
        if verb == "allgather":
            ddl.allgather(x, out=out)
        else:
            ddl.broadcast_(x, root=0)
        ways += "k" if _core.kernel_reads()[1] + _core.kernel_writes() > before else "s"
        blocks = out.reshape(ddl.size(), nbytes) if verb == "allgather" else [x]
        for rank, block in enumerate(blocks):
            assert np.array_equal(block, pattern ^ np.uint8(call + rank)), f"call {call}, from rank {rank}"
    return ways


CASES = [
    ("broadcast", (3 << 20) + 5, 2),
    ("broadcast", (128 << 10) + 1, 2),
    ("allgather", 100_001, 2),
    ("allgather", 100_001, 3),
    pytest.param("broadcast", (3 << 20) + 5, 3, marks=pytest.mark.slow),
    pytest.param("broadcast", 40 << 20, 2, marks=pytest.mark.slow),
    pytest.param("allgather", 5 << 20, 2, marks=pytest.mark.slow),
]


@pytest.mark.processes
@pytest.mark.parametrize(("verb", "nbytes", "size"), CASES)
def test_both_ways_are_tried_and_right(verb: str, nbytes: int, size: int) -> None:
    whole = nbytes if verb == "broadcast" else nbytes * size
    first = first_operations(whole, "k" if verb == "broadcast" and whole >= 2 << 20 else "s")
    answers = ranks.run(size, ways_of, verb, nbytes, len(first) + 3, env={"DDL_SPIN_US": "50"})
    for ways in answers:
        assert ways[: len(first)] == first
        assert ways[len(first) :] in ("kkk", "sss")  # what was quicker here
    assert len(set(answers)) == 1  # all have seen the same times


@pytest.mark.processes
def test_ranks_that_take_turns_on_cores_try_nothing() -> None:
    calls = len(first_operations(2 << 20, "s"))
    assert ranks.run(2, ways_of, "broadcast", 2 << 20, calls, env={"DDL_SPIN_US": "0"}) == ["s" * calls] * 2
