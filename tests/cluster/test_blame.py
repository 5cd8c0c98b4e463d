"""What goes wrong on one of four hosts: ddlrun's last words, ``ddl blame`` and the page name rank, host and cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple

import pytest
from cluster.control_group import control_group

from ddl.blame.finding import Finding
from ddl.blame.judge import blame
from ddl.launch.dashboard.history import read_history
from ddl.tools.dump_files import read_dumps
from lab import FOUR_HOSTS, Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.slow]
DEADLINE = 3.0  #: seconds, DDL_TIMEOUT
CULPRIT = 2  #: on node3, as there is a rank on each host
PAGE = "page.gz"

PROGRAM = """
import os, signal, sys, time
import numpy as np
import ddl

def load():
    time.sleep(60)

def read_a_pipe():
    os.read(os.pipe()[0], 1)

def take_all_memory():
    with open(os.environ["SMALL_GROUP"] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    return np.ones(1 << 28)

ddl.init()
rank, world, batch = ddl.rank(), ddl.world(), np.ones(1000, np.float32)
for step in range(100_000):
    ddl.allreduce_(batch)
    wrong = rank == 2 and step == 10
    if step == 10 and rank == 0:
        print("begun", flush=True)
    FAULT
    time.sleep(0.01)
"""


class Fault(NamedTuple):
    code: str
    kind: str
    sentence: str  #: what it says, among other words
    status: int = 1


FAULTS: Dict[str, Fault] = {
    "killed": Fault("if wrong: os.kill(os.getpid(), signal.SIGKILL)", "dead", "signal 9 (SIGKILL)", 137),
    "stopped": Fault("if wrong: os.kill(os.getpid(), signal.SIGSTOP)", "stopped", "is stopped, and 3 ranks wait"),
    "sleeps": Fault("if wrong: load()", "stuck in user code", "program.py, line 7, in load"),
    "another shape": Fault(
        "if wrong: ddl.allreduce_(np.ones(999, np.float32))",
        "called something else",
        "allreduce(999 x float32, average)",
    ),
    "another call": Fault("if wrong: ddl.broadcast_(batch, 0)", "called something else", "broadcast(1000 x float32"),
    "ends early": Fault("if wrong: sys.exit(0)", "never called", "has ended its program"),
    "raises": Fault("if wrong: raise KeyError('label')", "dead", "exited with status 1"),
    "full disk": Fault("if wrong: open('/dev/full', 'w').write('x' * 100_000)", "full disk", "could not write"),
    "system call": Fault("if wrong: read_a_pipe()", "stuck in a system call", "for a pipe, in"),
    "memory": Fault("if wrong: take_all_memory()", "out of memory", "there was no memory left", 137),
}


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(FOUR_HOSTS) as built:
        yield built


def start(cluster: Cluster, folder: Path, code: str, *options: str, ranks: int = 1) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(PROGRAM.replace("FAULT", code))
    names = ",".join(f"{host}:{ranks}" for host in cluster.hosts)
    kept = ["--dump-dir", str(folder / "dumps"), "--history", str(folder / PAGE)]
    line = [sys.executable, "-m", "ddl.launch", "-H", names, *kept]
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    given = [*line, "--timeout", f"{DEADLINE:g}", *options, "program.py"]
    return cluster.popen("node1", given, env=variables, cwd=folder, stdin=null, stdout=pipe, stderr=pipe)


def findings_in(folder: Path) -> List[Finding]:
    """Return what the newest dumps show."""
    dumps, end = read_dumps(max(folder.glob("dumps/*")))
    return blame(dumps, end)


def on_page(folder: Path) -> List[str]:
    """Return what the page says that has happened, apart from what ranks print."""
    return [record["text"] for record, _ in read_history(folder / PAGE) if record["k"] == "event"]


def last_words(err: str) -> str:
    """Return what ddlrun has said itself."""
    return "\n".join(line for line in err.splitlines() if line.startswith("ddlrun: "))


@pytest.fixture
def small_group() -> Iterator[str]:
    """Make a control group with 200 MB of memory, and no swap; return its folder."""
    size = str(200 << 20)
    with control_group("memory", {"memory.max": size}, {"memory.limit_in_bytes": size}) as group:
        if (group / "memory.swap.max").exists():  # a kernel may not count swap
            (group / "memory.swap.max").write_text("0")
        yield str(group)


@pytest.mark.parametrize("name", FAULTS)
def test_a_rank_goes_wrong(hosts: Cluster, tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    fault = FAULTS[name]
    options = ["--env", f"SMALL_GROUP={request.getfixturevalue('small_group')}"] if name == "memory" else []
    job = start(hosts, tmp_path, fault.code, *options)
    _, err = job.communicate(timeout=120)
    assert job.returncode == fault.status, err
    first = findings_in(tmp_path)[0]
    assert (first.kind, first.ranks, first.host) == (fault.kind, (CULPRIT,), "node3"), (first, err)
    assert fault.sentence in first.sentence, first
    words = last_words(err)
    assert "rank 2 (host node3, pid " in words, err
    assert fault.kind == "dead" or f"ddlrun: {fault.kind}: " in words, err
    page = on_page(tmp_path)
    assert any("rank 2 (host node3" in text for text in page), page
    assert fault.kind == "dead" or any(text.startswith(f"{fault.kind}: ") for text in page), page


GROUPS = """
    if step == 10:
        parts = [world.split(0), world.split(0)]
        for part in parts if rank != 2 else reversed(parts):
            part.allreduce_(batch)
"""


def test_two_groups_wait_for_one_another(hosts: Cluster, tmp_path: Path) -> None:
    job = start(hosts, tmp_path, GROUPS)
    _, err = job.communicate(timeout=120)
    assert job.returncode not in (0, None)
    first = findings_in(tmp_path)[0]
    assert first.kind == "deadlock" and CULPRIT in first.ranks, (first, err)
    assert "ddlrun: deadlock: " in last_words(err)
    assert any(text.startswith("deadlock: ") for text in on_page(tmp_path)), on_page(tmp_path)


@pytest.mark.parametrize("how", ["cut", "freeze", "power_off"])
def test_a_host_is_lost(clusters_can_be_built: None, tmp_path: Path, how: str) -> None:
    """Both of its ranks together: one finding."""
    with Cluster(FOUR_HOSTS) as cluster:
        job = start(cluster, tmp_path, "pass", ranks=2)
        assert job.stdout is not None and "begun" in job.stdout.readline()
        getattr(cluster, how)("node3")
        _, err = job.communicate(timeout=120)
        if how == "freeze":
            cluster.thaw("node3")
    assert job.returncode not in (0, None)
    first = findings_in(tmp_path)[0]
    assert (first.kind, first.ranks, first.host) == ("host lost", (4, 5), "node3"), (first, err)
    assert "node3" in last_words(err)
    assert any("node3" in text for text in on_page(tmp_path)), on_page(tmp_path)
