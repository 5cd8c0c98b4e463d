"""A rank dies, stops, exits, leaves or stays away: every other rank is told who it was, in time, and for good.

Faults are counted (the struck rank writes down the moment, just before), and happen while the others are inside an
operation: they began before and fail after. Afterwards nothing is left: descriptors, threads, files, processes.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import ranks
from core.faults import first_error, held_after, held_before, later_errors, strike_after, struck_at
from core.jobs import TRANSPORTS, connected

import ddl

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SIZE, VICTIM = 4, 2


def suffer(load: str, how: str, folder: str) -> Dict[str, Any]:
    """Run ``load``; rank VICTIM is struck meanwhile. What a survivor sees, and what it has left when it is out."""
    ddl.empty(1)  # the arena stays for the life of the process
    before = held_before()
    ddl.init()
    named = []

    def ready() -> None:
        named.append(Path("/proc/self/maps").read_text().count("/dev/shm"))
        if how == "stopped":
            ddl.world().set_timeout(3.0)  # not before the first operation, which connects
        if ddl.rank() == VICTIM:
            strike_after(0.15, how, folder)

    kind, text, started, failed = first_error(load, ready)
    answer = {"kind": kind, "text": text, "started": started, "failed": failed, "later": later_errors()}
    ddl.shutdown()
    return {
        **answer,
        "before": before,
        "after": held_after(before),
        "named": named,
    }


def survivors(load: str, how: str, transport: str, folder: Path, **env: str) -> List[Dict[str, Any]]:
    job = connected(transport, **env)
    fate = {"stopped": [VICTIM]} if how == "stopped" else {"may_die": [VICTIM]}
    answers = ranks.run(SIZE, suffer, load, how, str(folder), initialise=False, **fate, **job)
    victim = answers.pop(VICTIM)
    assert int(victim) == {"killed": -signal.SIGKILL, "exited": 3, "stopped": -signal.SIGKILL}[how]
    return answers


def check(answers: List[Dict[str, Any]], kind: str, moment: float) -> None:
    """All survivors: the right error about the right rank, again and again; and they were in an operation then."""
    assert len(answers) == SIZE - 1
    for answer in answers:
        assert answer["kind"] == kind, answer
        assert f"rank {VICTIM} (host" in answer["text"], answer["text"]
        assert answer["started"] < moment <= answer["failed"], "nobody was in an operation then"
        assert set(answer["later"]) == {answer["text"]}, answer["later"]


@pytest.mark.few(4)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("load", ["small", "large"])
@pytest.mark.parametrize("how", ["killed", "exited"])
def test_a_rank_dies(how: str, load: str, transport: str, tmp_path: Path) -> None:
    answers = survivors(load, how, transport, tmp_path)
    check(answers, "PeerLost", struck_at(tmp_path))  # the deadline is far away
    for answer in answers:
        assert "allreduce #" in answer["text"], answer["text"]
        assert ' "bucket.' in answer["text"] or load == "small", answer["text"]
        assert answer["after"] == answer["before"], f"descriptors, threads: {answer['before']} -> {answer['after']}"
        assert answer["named"] == [0], "files with names, which a killed rank leaves behind"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("load", "transport"), [("small", "shared"), ("small", "tcp"), ("small", "hybrid"), ("large", "hybrid")]
)
def test_a_rank_stops(load: str, transport: str, tmp_path: Path) -> None:
    answers = survivors(load, "stopped", transport, tmp_path)
    check(answers, "CollectiveTimeout", struck_at(tmp_path))


def go_away(how: str) -> Dict[str, Any]:
    """Rank VICTIM returns (and so shuts down), or never makes the second call; the others wait for it."""
    ddl.allreduce(np.ones(50_000))
    ranks.meet()
    if ddl.rank() == VICTIM:
        if how == "late":
            ranks.meet()
        return {}
    ddl.world().set_timeout(0.5 if how == "late" else 100.0)
    try:
        ddl.allreduce(np.ones(50_000))
    except ddl.Error as error:
        text = str(error)
        if how == "late":
            ranks.meet()
        return {"kind": type(error).__name__, "text": text, "later": later_errors()}
    return {"kind": "returned"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_leaves(transport: str) -> None:
    answers = ranks.run(SIZE, go_away, "leaves", **connected(transport))
    answers.pop(VICTIM)
    for answer in answers:
        assert answer["kind"] == "PeerLost" and f"rank {VICTIM} (host" in answer["text"], answer
        assert set(answer["later"]) == {answer["text"]}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_never_calls(transport: str) -> None:
    answers = ranks.run(SIZE, go_away, "late", **connected(transport))
    answers.pop(VICTIM)
    for answer in answers:
        assert answer["kind"] == "CollectiveTimeout" and f"rank {VICTIM} (host" in answer["text"], answer
        assert "allreduce #" in answer["text"] and "50000 x float64" in answer["text"]
        assert set(answer["later"]) == {answer["text"]}


def late_but_in_time() -> float:
    if ddl.rank() == VICTIM:
        time.sleep(1.5)
    return float(ddl.allreduce(np.full(9000, float(ddl.rank())))[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["shared", "tcp"])
def test_a_late_rank_is_waited_for(transport: str) -> None:
    assert ranks.run(SIZE, late_but_in_time, **connected(transport)) == [1.5] * SIZE


def first_call_after_a_death(folder: str) -> Dict[str, Any]:
    """The rank dies before anybody connected to it; ranks above it connect first, ranks below wait."""
    ranks.meet()
    if ddl.rank() == VICTIM:
        strike_after(0, "killed", folder)
        time.sleep(100)
    while not Path(folder, "struck").exists():
        time.sleep(0.01)
    try:
        ddl.world().alltoall(np.ones(SIZE * 10))
        ddl.allreduce(np.ones(500_000))
    except ddl.Error as error:
        return {"kind": type(error).__name__, "text": str(error)}
    return {"kind": "returned"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_between_operations(transport: str, tmp_path: Path) -> None:
    answers = ranks.run(SIZE, first_call_after_a_death, str(tmp_path), may_die=[VICTIM], **connected(transport))
    assert int(answers.pop(VICTIM)) == -signal.SIGKILL and struck_at(tmp_path)
    for answer in answers:
        assert answer["kind"] == "PeerLost" and f"rank {VICTIM} (host" in answer["text"], answer
