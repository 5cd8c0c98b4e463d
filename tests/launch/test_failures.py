"""Whom ddlrun blames, and in which words."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest

import ddl
from ddl.launch.agent.failures import Exit, first_failure, report
from ddl.launch.agent.tail import for_report


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
    killed = replace(ended(2, -9), out_of_memory="Killed process 102 (python)")
    assert str(killed) == "rank 2 (pid 102) was killed by signal 9 (SIGKILL): out of memory"
    assert report(killed, None, []) == f"ddlrun: {killed}"
    assert report(replace(killed, out_of_memory=""), None, []) == f"ddlrun: {ended(2, -9)}, not for want of memory"
    assert report(ended(2, -9), None, []) == f"ddlrun: {ended(2, -9)}: out of memory? 'dmesg' tells, as root"
    assert str(ended(2, -signal.SIGRTMIN - 1)).endswith("(SIGRTMIN+1)")
    assert report(ended(2, 3), None, []) == "ddlrun: rank 2 (pid 102) exited with status 3"
    assert report(ended(2, 3), verdict(2), ["a", "b"]) == (
        "ddlrun: rank 2 (pid 102) exited with status 3; its last lines on stderr:\n    a\n    b"
    )
    assert report(ended(2, 3), None, ["a"], above=True) == (
        "ddlrun: rank 2 (pid 102) exited with status 3; its last lines on stderr are those above"
    )
    assert report(ended(2, 3), None, [], above=True) == "ddlrun: rank 2 (pid 102) exited with status 3"
    assert report(ended(0, 1), verdict(2), []).startswith("ddlrun: the failure began with rank 2: it is gone\n")


OURS = str(Path(ddl.__file__).parent)
USER = ["Traceback (most recent call last):", '  File "train.py", line 3, in step', "    loss.mean()", "    ^^^^"]


def own(file: str = "api.py") -> list[str]:
    return [f'  File "{OURS}/{file}", line 201, in call', "    return verb(x)", "           ^^^^^^^"]


def test_a_traceback_without_our_frames() -> None:
    error = "ddl.errors.PeerLost: gone"
    assert for_report([*USER, *own(), *own("launch/x.py"), error]) == [*USER, error]
    torch = [f'  File "{OURS}_torch/verbs.py", line 80, in allreduce', "    return run(x)"]
    assert for_report([*USER, *torch, "ValueError: no"]) == [*USER, "ValueError: no"]
    users_own = [f'  File "{OURS}-data/load.py", line 1, in load', "    open(x)"]  # a folder of the user's
    assert for_report([*USER, *users_own, "E"]) == [*USER, *users_own, "E"]
    assert for_report([*own()[1:], "E"]) == [*own()[1:], "E"]  # cut off in the middle of a frame


def test_tracebacks_of_ours_alone() -> None:
    chain = ["", "The above exception was the direct cause of the following exception:", ""]
    head = USER[0]
    ours = [head, *own(), "OSError: refused", *chain[:2]]
    assert for_report([*ours, "", *USER, *own(), "ddl.errors.PeerLost: gone"]) == [
        "",
        *USER,
        "ddl.errors.PeerLost: gone",
    ]
    users = [*USER, "KeyError: 3", *chain[:2]]
    assert for_report([*users, "", *USER, "ValueError: no"]) == [*users, "", *USER, "ValueError: no"]
    fault = [head, *own(), "AssertionError"]
    assert for_report(fault) == fault  # nothing else shows it


def test_lines_that_are_no_traceback() -> None:
    lines = [f"line {number}" for number in range(30)]
    assert for_report(lines) == lines[10:]
    assert for_report(lines, 3) == lines[27:]
    assert for_report([]) == []
