"""Whom ddlrun blames, and in which words."""

from __future__ import annotations

import signal
from typing import Optional

import pytest

from ddl.run.failures import Exit, first_failure, report


def ended(rank: int, code: int, seen: int = 1, stopped: bool = False) -> Exit:
    return Exit(rank, 100 + rank, code, seen, stopped)


def verdict(culprit: int) -> dict[str, object]:
    return {"type": "fail", "comm": -1, "kind": "PeerLost", "culprit": culprit, "reason": "it is gone"}


@pytest.mark.parametrize(
    ("exits", "culprit", "blamed"),
    [
        ([ended(0, 0), ended(1, 0)], None, None),
        ([ended(0, 0), ended(1, 3)], None, 1),
        ([ended(0, 1, seen=5), ended(1, 1, seen=4)], None, 1),  # the first in time
        ([ended(0, 1), ended(1, -9), ended(2, 1)], None, 1),  # at the same moment: a signal is nobody's consequence
        ([ended(0, 2), ended(1, 1)], None, 0),
        ([ended(0, 1, seen=1), ended(2, 1, seen=2)], 2, 2),  # the store knows better than chance
        ([ended(0, 1), ended(2, 0)], 2, 0),  # the culprit ended well: the first to complain shows why
        ([ended(0, 1), ended(3, -9, stopped=True)], 3, 0),  # the culprit hung, and we killed it
        ([ended(0, -15, stopped=True)], None, None),
    ],
)
def test_who_is_blamed(exits: list[Exit], culprit: Optional[int], blamed: Optional[int]) -> None:
    for order in (exits, exits[::-1]):
        failed = first_failure(order, None if culprit is None else verdict(culprit))
        assert (None if failed is None else failed.rank) == blamed


def test_statuses_are_those_of_a_shell() -> None:
    assert [ended(0, code).status for code in (0, 3, 255, -9, -11)] == [0, 3, 255, 137, 139]


def test_the_words() -> None:
    assert str(ended(2, 3)) == "rank 2 (pid 102) exited with status 3"
    assert str(ended(2, -9)) == "rank 2 (pid 102) was killed by signal 9 (SIGKILL)"
    assert str(ended(2, -signal.SIGRTMIN - 1)).endswith("(SIGRTMIN+1)")
    assert report(ended(2, 3), None, []) == "ddlrun: rank 2 (pid 102) exited with status 3"
    assert report(ended(2, 3), verdict(2), ["a", "b"]) == (
        "ddlrun: rank 2 (pid 102) exited with status 3; its last lines on stderr:\n    a\n    b"
    )
    assert report(ended(0, 1), verdict(2), []).startswith("ddlrun: the failure began with rank 2: it is gone\n")
