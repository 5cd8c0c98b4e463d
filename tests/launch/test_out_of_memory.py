"""The kernel kills a rank for want of memory, in a control group with little of it. The test makes and removes it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Callable, Iterator

import pytest
from launch.launcher import Launcher

pytestmark = pytest.mark.processes

LIMIT = 300 << 20  # bytes: two ranks and ddlrun take a third of it

# The mount is seen by this process alone, and is gone with it. Where version 1 of control groups has memory, version 2
# has not. Nothing of the group goes to a swap device.
MOUNT = """
if mount -t cgroup -o memory none "$0" 2>/dev/null; then
    limit=memory.limit_in_bytes swap=memory.swappiness
else
    limit=memory.max swap=memory.swap.max
    mount -t cgroup2 none "$0" && echo +memory >"$0/cgroup.subtree_control"
fi &&
    mkdir "$0/$1" && echo "$2" >"$0/$1/$limit" && { [ ! -e "$0/$1/$swap" ] || echo 0 >"$0/$1/$swap"; } && echo ready &&
    read -r
rmdir "$0/$1"
"""


@pytest.fixture
def little_memory(tmp_path: Path) -> Iterator[Path]:
    """Yield the control group; skip where this user may make none."""
    group = f"ddl-test-{tmp_path.name}"
    point = tmp_path / "group"
    point.mkdir()
    words = ["unshare", "--mount", "bash", "-c", MOUNT, str(point), group, str(LIMIT)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, stderr=-1, text=True) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None and keeper.stderr is not None
        if keeper.stdout.readline() != "ready\n":
            pytest.skip(f"no control group with a limit of memory can be made here: {keeper.stderr.read()}")
        yield Path(f"/proc/{keeper.pid}/root{point}/{group}")
        _, said = keeper.communicate("end\n", timeout=60)
    assert not said, said


TRAIN = """
import numpy as np
import ddl

ddl.init()
for step in range(3):
    ddl.allreduce(np.ones(1000, np.float32))
    if rank == 1 and step == 1:
        b"x" * (1 << 30)
"""


@pytest.mark.parametrize("elastic", [False, True], ids=["fixed", "elastic"])
def test_a_rank_that_the_kernel_has_killed_for_memory(
    launcher: Launcher, script: Callable[[str], str], little_memory: Path, elastic: bool
) -> None:
    procs = str(little_memory / "cgroup.procs")

    def enter() -> None:
        with open(procs, "w", encoding="utf-8") as file:
            file.write("0")

    options = ("--min-np", "1") if elastic else ()
    done = launcher.run("-np", "2", *options, script(TRAIN), preexec_fn=enter)
    assert done.returncode == 137
    end = "(SIGKILL): out of memory; 1 rank is left\n" if elastic else "(SIGKILL): out of memory; its last lines"
    assert end in done.stderr.replace("memory\n", "memory; its last lines")
    assert "ddlrun: out of memory: the kernel killed rank 1 " in done.stderr
