"""Which way a large private array of a broadcast's root goes: both are tried, and the quicker one is kept."""

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

FIRST_TRIAL = 4  # operations of a size before it
EACH_WAY = 8  # operations of a trial
SETTLED = 2  # operations between a trial and its result
BETWEEN = 1000


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Return a function that plays phases and returns a letter for each operation of each phase."""
    program = tmp_path_factory.mktemp("handover") / "handover_choice"
    sources = [HERE / "handover_choice.cc", CSRC / "engine" / "handover.cc"]
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "no C++ compiler"
    command = [compiler, "-std=c++17", "-O1", f"-I{CSRC}", "-o", str(program), *map(str, sources)]
    subprocess.run(command, check=True, timeout=240)

    def play_phases(*phases: Tuple[int, int, int, int]) -> List[str]:
        arguments = [",".join(map(str, phase)) for phase in phases]
        return subprocess.run(
            [str(program), *arguments], check=True, capture_output=True, text=True, timeout=60
        ).stdout.split()

    return play_phases


TRIAL = "s" * (FIRST_TRIAL + EACH_WAY) + "k" * EACH_WAY + "s" * SETTLED


@pytest.mark.parametrize("kib", [2 << 10, 32 << 10, 4 << 20])
@pytest.mark.parametrize(("kernel", "kept"), [(60, "k"), (94, "k"), (96, "s"), (100, "s"), (170, "s")])
def test_the_quicker_way_is_kept(play: Play, kib: int, kernel: int, kept: str) -> None:
    (ways,) = play((100, kib, 100, kernel))
    assert ways == TRIAL + kept * (100 - len(TRIAL))


def test_another_trial_finds_that_it_has_changed(play: Play) -> None:
    cycle = BETWEEN + 2 * EACH_WAY + SETTLED
    first, then, last = play((100, 4 << 10, 100, 80), (cycle, 4 << 10, 80, 100), (cycle, 4 << 10, 100, 100))
    assert first.endswith("k" * 50)
    assert then.count("s") > EACH_WAY and then.endswith("s")
    assert last.count("k") == EACH_WAY  # neither is quicker


def test_each_size_has_a_trial_of_its_own(play: Play) -> None:
    small, large, again = play((60, 2 << 10, 100, 80), (60, 16 << 10, 100, 120), (10, 2 << 10, 100, 80))
    assert small.endswith("k" * 38) and large == TRIAL + "s" * 38 and again == "k" * 10


def reads_of_broadcasts(nbytes: int, calls: int) -> List[int]:
    """Broadcast from rank 0 so often; return how many bytes of each the kernel has read, on this rank."""
    pattern, x = np.resize(np.arange(251, dtype=np.uint8), nbytes), np.zeros(nbytes, np.uint8)
    ddl.barrier()
    reads = []
    for call in range(calls):
        expected = pattern ^ np.uint8(call)
        x[:] = expected if ddl.rank() == 0 else 0
        before = _core.kernel_reads()[1]
        ddl.broadcast_(x, root=0)
        reads.append(_core.kernel_reads()[1] - before)
        assert np.array_equal(x, expected), f"call {call}"
    return reads


@pytest.mark.processes
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("nbytes", [(3 << 20) + 5, pytest.param(40 << 20, marks=pytest.mark.slow)])
def test_both_ways_are_tried_and_right(size: int, nbytes: int) -> None:
    calls = len(TRIAL) + 3
    answers = ranks.run(size, reads_of_broadcasts, nbytes, calls, env={"DDL_SPIN_US": "50"})
    expected = [nbytes if way == "k" else 0 for way in TRIAL]
    assert answers[0] == [0] * calls
    for reads in answers[1:]:
        assert reads[: len(TRIAL)] == expected
        assert reads[len(TRIAL) :] in ([nbytes] * 3, [0] * 3)  # what was quicker here


@pytest.mark.processes
def test_ranks_that_take_turns_on_cores_try_nothing() -> None:
    answers = ranks.run(2, reads_of_broadcasts, 2 << 20, len(TRIAL), env={"DDL_SPIN_US": "0"})
    assert answers == [[0] * len(TRIAL)] * 2
