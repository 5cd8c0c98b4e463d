"""A hundred jobs in one process: nothing grows from init to shutdown to init, though nobody collects garbage.

The same with process sets and operations that are negotiated, whose threads and communicators are ddl_torch's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List

import pytest
from launch.launcher import ROOT, Launcher

pytestmark = pytest.mark.processes

#: Cycles that use everything, nothing, or something that fails; each ends by the same shutdown.
PROGRAM = """
import gc, json, os, sys, time
import numpy as np
import ddl
from ddl import _core, jobs

def held():
    while jobs.state.retired:  # memory that others may write to until they have left, too
        time.sleep(0.001)
        jobs._let_go_of_retired()
    with open("/proc/self/maps") as maps, open("/proc/self/status") as status:
        fields = dict(line.split(":") for line in status)
        return {
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
            "mapped arenas": sum("memfd" in line for line in maps),
            "arena bytes": _core.arena_used(),
            "kilobytes": int(fields["VmRSS"].split()[0]),
        }

def everything():
    assert ddl.allreduce(np.full(20_000, ddl.rank()), op=ddl.Sum)[-1] == ddl.size() * (ddl.size() - 1) // 2
    assert ddl.split(ddl.rank() % 2).allreduce(1.0, op=ddl.Sum) == 1
    assert ddl.broadcast_object({"a": ddl.size()}) == {"a": ddl.size()}

def nothing():
    pass

def a_refused_call():
    try:
        ddl.broadcast(np.ones(3), root=ddl.size())
    except ddl.InvalidArgument:
        return
    raise SystemExit("it was not refused")

def a_failing_call():
    try:
        ddl.allreduce(np.ones(3 + ddl.rank()))
    except ddl.CollectiveMismatch:
        assert ddl.size() == 2
        return
    assert ddl.size() == 1

WORK = [everything, nothing, a_refused_call, a_failing_call]
gc.disable()  # what only a collection would free counts as held
seen = []
for cycle in range(100):
    ddl.init()
    WORK[cycle % 4]()
    ddl.shutdown()
    seen.append(held())
with open(f"held.{os.environ.get('DDL_RANK', '0')}", "w") as file:
    json.dump(seen, file)
"""

#: What is negotiated; ``ddl`` stands for ``ddl_torch`` then.
NEGOTIATED = """
import torch

def sets():
    own = ddl.add_process_set([ddl.rank()])
    assert ddl.allreduce(torch.ones(2), op=ddl.Sum, process_set=own).tolist() == [1, 1]
    everybody()

def everybody():
    handle = ddl.allreduce_async(torch.ones(3), name="x", op=ddl.Sum)
    assert ddl.synchronize(handle).tolist() == [ddl.size()] * 3

def a_mismatch():
    try:
        ddl.allreduce(torch.ones(3 + ddl.rank()), name="y")
    except ddl.HorovodInternalError:
        assert ddl.size() == 2

def nobody_waits():
    ddl.allreduce_async(torch.ones(3), name=f"of rank {ddl.rank()}")

WORK = [sets, everybody, a_mismatch, nobody_waits]
"""


def negotiated() -> str:
    """PROGRAM by ddl_torch."""
    return PROGRAM.replace("import ddl\n", "import ddl_torch as ddl\n").replace(
        "gc.disable()", f"{NEGOTIATED}gc.disable()"
    )


def nothing_grew(path: Path) -> None:
    seen: List[Dict[str, int]] = json.loads(path.read_text())
    allowed = {"descriptors": 4, "threads": 4, "mapped arenas": 1, "arena bytes": 4096, "kilobytes": 2048}
    for kind in range(4):
        for what, slack in allowed.items():  # a connection that came while its rank left may be closed a cycle later
            counts = [entry[what] for entry in seen[20 + kind :: 4]]  # by then, all that is kept for good is there
            assert max(counts[10:]) <= min(counts[:10]) + slack, (kind, what, counts)


@pytest.mark.slow
def test_a_hundred_cycles_on_two_ranks(launcher: Launcher, script: Callable[[str], str], tmp_path: Path) -> None:
    done = launcher.run("-np", "2", script(PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        nothing_grew(tmp_path / f"held.{rank}")


@pytest.mark.slow
def test_a_hundred_cycles_with_process_sets(launcher: Launcher, script: Callable[[str], str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = launcher.run("-np", "2", script(negotiated()), cwd=tmp_path, environ={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        nothing_grew(tmp_path / f"held.{rank}")


def test_a_hundred_cycles_alone(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": ROOT}
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environ, timeout=240, check=True)
    nothing_grew(tmp_path / "held.0")
