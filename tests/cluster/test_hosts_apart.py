"""Two hosts do not hear each other any more, though both still reach the store: the job notices, and says which."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterable, List, Sequence, Tuple

import pytest
from cluster.elastic_hosts import HostsJob
from launch.launcher import eventually

from lab import FOUR_HOSTS, Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.slow]  # 10 seconds have to pass
THREE_HOSTS, TWO_RAILS = Shape(3), Shape(3, rails=(None, None))

# In "message", rank 2 sends, and knows no more of it: it is rank 1 that waits. In "late", rank 2 comes late to a step.
PROGRAM = """
import pathlib, sys, time
import numpy as np
import ddl
ddl.init()
folder, elements, when = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
x = np.ones(elements, np.float32)
def say_and_wait():
    (folder / f"begun.{ddl.rank()}").touch()
    while not (folder / "apart").exists():
        time.sleep(0.01)
if when in ("before", "late"):
    say_and_wait()
for step in range(20 if when == "late" else 10**6):
    ddl.allreduce_(x, op="sum")
    x[:] = 1
    if step == 5 and when == "late" and ddl.rank() == 2:
        time.sleep(30)
    elif step == 5 and when not in ("before", "late"):
        if when == "message" and ddl.rank() > 0:
            for _ in range(2):
                ddl.send(x, 1) if ddl.rank() == 2 else ddl.recv(x, 2)
                say_and_wait()
            time.sleep(15 if ddl.rank() == 2 else 0)
        say_and_wait()
"""


def run_apart(
    cluster: Cluster, folder: Path, rails: Iterable[int], *options: str, words: Sequence[str]
) -> Tuple[int, str]:
    """Run a rank on each of three hosts; let the last two not hear each other on ``rails``, once all have begun.

    Returns the status of ddlrun, and what it has said.
    """
    hosts = ["-H", "node1:1,node2:1,node3:1", "--output-dir", "logs"]
    line = [sys.executable, "-m", "ddl.launch", *hosts, *options, sys.executable, "-c", PROGRAM, str(folder), *words]
    job = cluster.popen(
        "node1",
        line,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TIMEOUT": "300"},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    with job:
        assert eventually(lambda: len(list(folder.glob("begun.*"))) == 3)
        for rail in rails:
            cluster.part("node2", "node3", rail)
        (folder / "apart").touch()
        said = job.communicate(timeout=200)[1]
    return job.returncode, said


@pytest.mark.parametrize(
    ("own_cluster", "elements", "when", "options"),
    [
        pytest.param(THREE_HOSTS, 1000, "message", [], id="message"),
        pytest.param(THREE_HOSTS, 1 << 20, "after", [], id="4 MiB"),
        pytest.param(THREE_HOSTS, 1 << 20, "before", [], id="before there is a connection"),
        pytest.param(THREE_HOSTS, 1 << 16, "after", ["--encrypt"], id="encrypted"),
        pytest.param(TWO_RAILS, 1 << 16, "after", [], id="two rails"),
    ],
    indirect=["own_cluster"],
)
def test_all_ranks_say_which(
    own_cluster: Cluster, tmp_path: Path, elements: int, when: str, options: List[str]
) -> None:
    rails = range(len(own_cluster.shape.rails))
    status, said = run_apart(own_cluster, tmp_path, rails, *options, words=(str(elements), when))
    assert status == 1, said
    for rank in range(3):
        error = (tmp_path / "logs" / f"rank.{rank}.err").read_text()
        lost = "the other ranks have given this rank up" if rank == 2 else r"lost rank 2 \(host node3\)"
        words = rf"PeerLost: \[rank {rank}/3 .*{lost}: it and rank 1 have not heard each other for 10 s"
        assert re.search(words, error), error


@pytest.mark.parametrize("own_cluster", [TWO_RAILS], indirect=True, ids=[""])
def test_another_rail_is_enough(own_cluster: Cluster, tmp_path: Path) -> None:
    """A rank waits for one that comes late, while connections on the other rail cannot be made."""
    status, said = run_apart(own_cluster, tmp_path, [1], words=("65536", "late"))
    assert status == 0, said


@pytest.mark.parametrize("own_cluster", [FOUR_HOSTS], indirect=True, ids=[""])
def test_an_elastic_job_goes_on_without_one_of_the_hosts(own_cluster: Cluster, tmp_path: Path) -> None:
    with HostsJob(own_cluster, tmp_path, "commits") as job:
        there = job.full(8)
        on, off = [there[rank] for rank in range(6)], [there[rank] for rank in (6, 7)]
        since = time.monotonic()
        own_cluster.part("node3", "node4")
        job.go_on(since, on)
        job.wait_for_ends(off)
        for note in off:
            assert re.search("LeftOut: .* have not heard each other for 10 s", job.words(note)), job.words(note)
        job.end()
        job.check("commits")
