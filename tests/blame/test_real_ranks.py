"""Real ranks that hang, or do not: ``ddl dump --out``, then ``ddl blame``, and the right rank is blamed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import ranks

from ddl.tools.cli import main

pytestmark = pytest.mark.processes
LIMIT = 80.0  # seconds until the right finding is there; it takes about one, and calls have 100


def begin(folder: str):
    """Return the communicator of all ranks, when all have told that they are there."""
    import ddl

    world = ddl.world()
    world.allreduce_(np.ones(4, np.float32))
    (Path(folder) / f"ready.{world.rank}").touch()
    ranks.meet()
    return world


def stopped(folder: str) -> None:
    world = begin(folder)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def sleeps(folder: str) -> None:
    world = begin(folder)
    if world.rank == 1:
        time.sleep(1000)
    world.barrier()


def and_then_nothing(call: Callable[[], Any]) -> None:
    """Call it, and stay when it has raised the error of a rank that others have left or contradicted."""
    import ddl

    with pytest.raises(ddl.CommunicatorError):
        call()
    time.sleep(1000)


def never_calls(folder: str) -> None:
    world = begin(folder)
    if world.rank == 0:
        and_then_nothing(world.barrier)


def dies(folder: str) -> None:
    world = begin(folder)
    if world.rank == 0:
        and_then_nothing(world.barrier)
    os.kill(os.getpid(), signal.SIGKILL)


def other_size(folder: str) -> None:
    """Rank 1 calls something else, when all others have called: the first two calls that differ break the rest."""
    world = begin(folder)
    if world.rank == 1:
        ranks.meet()
        and_then_nothing(lambda: world.allreduce_(np.ones(5, np.float32)))
    work = world.allreduce_async_(np.ones(4, np.float32))
    ranks.meet()
    and_then_nothing(work.wait)


def two_communicators(folder: str) -> None:
    world = begin(folder)
    parts = [world.split(0), world.split(0)]
    and_then_nothing(parts[world.rank].barrier)


def messages(folder: str) -> None:
    world = begin(folder)
    world.recv(np.ones(4), 1 - world.rank)


def healthy(folder: str) -> None:
    """Each rank is the last one in turn."""
    world = begin(folder)
    for number in itertools.count(world.rank):
        world.allreduce_(np.ones(1000, np.float32))
        time.sleep(0.001 * (number % world.size))


def comes_late(folder: str) -> None:
    """Rank 1 comes when all others have been there for a while, however busy the machine is."""
    world, about_to_call = begin(folder), Path(os.environ["RANKS_FOLDER"])
    others = [rank for rank in range(world.size) if rank != 1]
    for number in itertools.count():
        if world.rank != 1:
            (about_to_call / f"call.{number}.{world.rank}").touch()
        else:
            while not all((about_to_call / f"call.{number}.{rank}").exists() for rank in others):
                time.sleep(0.001)
            time.sleep(0.03)
        world.allreduce_(np.ones(1000, np.float32))


def look(pids: List[int], folder: Path, patience: str) -> List[Dict[str, Any]]:
    """Dump those that are still there, and return what is found."""
    for pid in pids:
        main(["dump", "--pid", str(pid), "--out", str(folder)])  # 2 if it has ended
    assert main(["blame", str(folder), "--patience", patience, "--json", str(folder / "findings.json")]) == 0
    findings: List[Dict[str, Any]] = json.loads((folder / "findings.json").read_text())["findings"]
    return findings


def while_running(function: Callable[[str], None], folder: Path, size: int, watch: Callable[[List[int]], None]) -> None:
    """Run ``function`` on ranks; when all are there, call ``watch`` with their pids, then kill them."""

    def watched(pids: List[int]) -> None:
        processes = [os.pidfd_open(pid) for pid in pids]
        try:
            deadline = time.monotonic() + LIMIT
            while len(list(folder.glob("ready.*"))) < size and time.monotonic() < deadline:
                time.sleep(0.01)
            watch(pids)
        finally:
            for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none hears of another one's end
                for process in processes:
                    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                        signal.pidfd_send_signal(process, number)
            for process in processes:
                os.close(process)

    watchers: List[threading.Thread] = []

    def start(pids: List[int]) -> None:
        watchers.append(threading.Thread(target=watched, args=(pids,)))
        watchers[0].start()

    ranks.run(size, function, str(folder), on_start=start, may_die=range(size))
    watchers[0].join()


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("function", "size", "kind", "blamed"),
    [
        (stopped, 3, "stopped", [1]),
        (sleeps, 3, "stuck in user code", [1]),
        (never_calls, 2, "never called", [1]),
        (dies, 2, "dead", [1]),
        (other_size, 3, "called something else", [1]),
        (other_size, 2, "called something else", [0, 1]),
        (two_communicators, 2, "deadlock", [0, 1]),
        (messages, 2, "deadlock", [0, 1]),
        (comes_late, 3, "slow", [1]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_right_rank_is_blamed(function, size: int, kind: str, blamed: List[int], tmp_path: Path, capsys) -> None:
    seen: List[Any] = []

    def watch(pids: List[int]) -> None:
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            seen.append([(finding["kind"], finding["ranks"]) for finding in look(pids, tmp_path, "0.5")])
            if seen[-1] == [(kind, blamed)]:
                return
            time.sleep(0.1)

    while_running(function, tmp_path, size, watch)
    assert seen[-1] == [(kind, blamed)]
    assert f"\n{kind}: " in capsys.readouterr().out


def test_a_healthy_job_accuses_nobody(tmp_path: Path, capsys) -> None:
    seen: List[Any] = []

    def watch(pids: List[int]) -> None:
        for _ in range(10):
            seen.append(look(pids, tmp_path, "60"))  # the machine may keep a healthy rank waiting for seconds
            time.sleep(0.05)

    while_running(healthy, tmp_path, 3, watch)
    assert seen == [[]] * 10
    assert "no rank is to blame: all 3 ranks do operation #" in capsys.readouterr().out
