"""Private arrays that the kernel writes for another rank: a rank that has its array back finds it as it leaves it."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import List, Tuple

import numpy as np
import pytest
import ranks
from core.faults import strike_after, struck_at

import ddl
from ddl import _core

HERE = Path(__file__).parent
CSRC = HERE.parents[1] / "csrc"
FROM_ONE_BYTE = {"DDL_READ_FROM": "1"}


def test_nothing_is_written_through_a_closed_gate(tmp_path: Path) -> None:
    program = tmp_path / "kernel_write"
    sources = [HERE / "kernel_write.cc", *(CSRC / "memory" / f"kernel_{way}.cc" for way in ("read", "write"))]
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None, "no C++ compiler"
    command = [compiler, "-std=c++17", "-O1", "-pthread", f"-I{CSRC}", "-o", str(program)]
    command += [str(source) for source in (*sources, *sorted(CSRC.glob("base/*.cc")))]
    subprocess.run(command, check=True, timeout=240)
    said = subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.splitlines() == [
        "an open gate: done, 300001 changed",
        "data that is not there: refused, 0 changed",
        "a closed gate: gone, 0 changed",
        "another process: gone, 0 changed",
        "written: once",
        "a process that computes: may be at work",
        "a process that is stopped: is not at work",
        "a process that has ended: is not at work",
        "after its end: gone",
    ]


def broadcast_until_the_root_is_stopped(folder: str, n: int) -> Tuple[str, int, bool]:
    """Return what rank 1 was told, how much was written before, and whether its array stayed as it left it."""
    root = int(ddl.broadcast_object(os.getpid(), root=0))
    x = np.zeros(n, np.float32)
    ddl.broadcast_(x, root=0)
    written = _core.kernel_writes()
    if ddl.rank() == 0:
        strike_after(0.3, "stopped", folder)
    try:
        for _ in range(10_000_000):
            ddl.broadcast_(x, root=0)
    except ddl.Error as error:
        told = type(error).__name__
    if ddl.rank() == 0:
        return told, written, True
    x[:] = 42
    os.kill(root, signal.SIGCONT)  # it goes on in the broadcast of which it does not know yet that it has failed
    until = time.monotonic() + 1
    as_it_was = True
    while time.monotonic() < until:
        as_it_was &= bool((x == 42).all())
    return told, written, as_it_was


@pytest.mark.processes
@pytest.mark.faults
def test_a_rank_that_goes_on_late_writes_nothing(tmp_path: Path) -> None:
    n = 4 << 20
    environ = {**FROM_ONE_BYTE, "DDL_TIMEOUT": "2"}
    answers: List[Tuple[str, int, bool]] = ranks.run(
        2, broadcast_until_the_root_is_stopped, str(tmp_path), n, env=environ
    )
    assert struck_at(tmp_path) > 0
    assert answers[0][1] >= 2 * n - 4096, "the root writes half of it"
    assert answers[1][0] in ("CollectiveTimeout", "PeerLost") and answers[1][2], answers


def fails_while_rank_0_writes(word: int) -> Tuple[str, float]:
    """Rank 0 says that it is writing to arrays of others; it returns when it says that this has ended.

    Rank 1 waits for rank 0 in vain, and returns what it is told, and when.
    """
    ddl.barrier()
    if ddl.rank() == 1:
        try:
            ddl.allreduce(np.ones(1 << 20))
        except ddl.Error as error:
            return type(error).__name__, time.monotonic()
    arena = mmap.mmap(_core.arena_fd(), 0)
    place = ddl.world()._core.board_offset + word + 4 * _core.LANE_LARGE
    struct.pack_into("I", arena, place, 1)
    time.sleep(4)
    ended = time.monotonic()
    struct.pack_into("I", arena, place, 2)
    return "", ended


@pytest.mark.processes
@pytest.mark.faults
@pytest.mark.parametrize("word", [_core.BOARD_WRITING, _core.BOARD_STORING], ids=["by the kernel", "itself"])
def test_a_rank_gets_its_array_when_who_writes_has_ended(word: int) -> None:
    (_, ended), (told, at) = ranks.run(2, fails_while_rank_0_writes, word, env={"DDL_TIMEOUT": "1"})
    assert told in ("CollectiveTimeout", "PeerLost") and at >= ended
