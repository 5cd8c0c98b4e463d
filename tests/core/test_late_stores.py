"""Arrays that all ranks of a host can write: after a failure none of them writes there, however late it goes on."""

from __future__ import annotations

import mmap
import struct
import time
from typing import List, Tuple

import numpy as np
import pytest
import ranks

import ddl
from ddl import _core

pytestmark = [pytest.mark.processes, pytest.mark.faults]
N = 1 << 20


def in_vain(verb: str, marked: bool) -> Tuple[str, int, List[int]]:
    """Return what this rank was told, how much of its array has changed, and which ranks it finds amid a store.

    ``marked``: rank 0 says from the beginning that it has taken its arrays back.
    """
    if marked and ddl.rank() == 0:
        arena = mmap.mmap(_core.arena_fd(), 0)
        struct.pack_into("I", arena, ddl.world()._core.board_offset + _core.BOARD_TAKEN_BACK, 1)
    x = ddl.empty(N, np.float32)
    x[:] = 1 + ddl.rank()
    ranks.meet()
    told = ""
    try:
        if verb == "allreduce":
            ddl.allreduce_(x, op="sum")
        else:
            ddl.broadcast_(x, root=1)
    except ddl.Error as error:
        told = type(error).__name__
    return told, int((x != 1 + ddl.rank()).sum()), [rank for rank, _ in ddl.world()._core.stuck()]


@pytest.mark.parametrize("verb", ["allreduce", "broadcast"])
def test_nothing_is_stored_to_a_rank_that_has_taken_its_arrays_back(verb: str) -> None:
    told, changed, stuck = ranks.run(2, in_vain, verb, True, env={"DDL_TIMEOUT": "2"})[0]
    assert told == "CollectiveTimeout" and changed < N and stuck == []
    whole = ranks.run(2, in_vain, verb, False)
    assert whole[0] == ("", N, []), "else the first run shows nothing"


def amid_a_store(fails: bool) -> Tuple[List[int], float]:
    """Rank 1 says for a second that it stores; return whom rank 0 finds stuck, and when this rank was done."""
    arena, board = mmap.mmap(_core.arena_fd(), 0), ddl.world()._core.board_offset
    ddl.barrier()
    if ddl.rank() == 0 and fails:
        struct.pack_into("I", arena, board + _core.BOARD_TAKEN_BACK, 1)
    if ddl.rank() == 1:
        struct.pack_into("I", arena, board + _core.BOARD_STORING, 1)
    ranks.meet()
    if ddl.rank() == 0:
        return [rank for rank, _ in ddl.world()._core.stuck()], time.monotonic()
    time.sleep(1.0)
    done = time.monotonic()
    struct.pack_into("I", arena, board + _core.BOARD_STORING, 2)
    return [], done


def test_a_rank_that_is_not_stopped_is_not_stuck() -> None:
    """It must not be killed: a group that is left may be at work still, and a slow rank ends its copy."""
    assert ranks.run(2, amid_a_store, False)[0][0] == []
    (stuck, at), (_, stored) = ranks.run(2, amid_a_store, True)
    assert stuck == [] and at >= stored


def left_and_used_again(fill: int) -> Tuple[bool, List[int]]:
    """Both ranks leave; then rank 1 has other things where its board was. Return what rank 0 takes rank 1 for."""
    group, arena = ddl.world()._group, mmap.mmap(_core.arena_fd(), 0)
    board = group.core.board_offset
    if ddl.rank() == 0:
        struct.pack_into("I", arena, board + _core.BOARD_TAKEN_BACK, 1)  # as if an operation had failed
    group.close()
    ranks.meet()
    if ddl.rank() == 1:
        end = board + _core.BOARD_TAKEN_BACK + 64
        arena[board:end] = bytes([fill]) * (end - board)
    ranks.meet()
    seen = group.deserted, [rank for rank, _ in group.core.stuck()]
    ranks.meet()  # an end would be seen, too
    return seen


@pytest.mark.parametrize("fill", [0, 255])
def test_a_rank_that_has_left_has_left_whatever_it_puts_where_its_board_was(fill: int) -> None:
    """Else this rank would keep memory until its timeout, or take the other one for stuck, and kill it."""
    assert ranks.run(2, left_and_used_again, fill)[0] == (True, [])
