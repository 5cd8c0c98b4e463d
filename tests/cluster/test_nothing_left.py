"""Nothing is left of a cluster: when it is closed, when its builder is killed, and, after one more build, of any."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Set, Tuple

import pytest

from lab import FOUR_HOSTS, PATIENCE, Cluster, ClusterError, system
from lab.leftovers import clusters

pytestmark = pytest.mark.usefixtures("clusters_can_be_built")
alone = pytest.mark.alone  # another test's cluster may have something outside while it is built, or remove what is left
ROOT = Path(__file__).resolve().parents[2]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}

BUILDER = """
import sys
from lab import TWO_RAILS, Cluster
with Cluster(TWO_RAILS) as cluster:
    cluster.popen("node1", ["sleep", "1000"])
    cluster.popen("node2", ["sleep", "1000"])
    cluster.freeze("node2")
    print(cluster.directory, flush=True)
    sys.stdin.read()
"""


def outside() -> Set[str]:
    """This machine's interfaces and mounts."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {*os.listdir("/sys/class/net"), *(" ".join(line.split()[3:5]) for line in mounts)}


def running() -> Dict[Tuple[str, str], Set[str]]:
    """All processes, by number and start, since numbers come again, with their namespaces."""
    processes = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            namespaces = {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("net", "mnt", "uts", "ipc", "pid")}
            start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
            processes[pid, start] = namespaces
    return processes


class Traces:
    """What is to be seen of a cluster that is up, to look for it later."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory, system.cgroups() / directory.name]
        now = running()
        heads = {file.read_text().strip() for file in directory.glob("*.pid")}
        ours = {os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "uts", "ipc", "pid")}
        theirs = {name for (pid, _), names in now.items() if pid in heads for name in names} - ours
        self.processes = {process for process, names in now.items() if names & theirs}
        assert all(path.is_dir() for path in self.paths) and len(self.processes) > len(heads) > 2

    def left(self) -> List[object]:
        return [path for path in self.paths if path.exists()] + sorted(self.processes & running().keys())

    def wait_until_gone(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.left():
            assert time.monotonic() < deadline, f"left after {PATIENCE} s: {self.left()}"
            time.sleep(0.01)


@alone
def test_nothing_is_left_after_close():
    before = outside()
    with Cluster(FOUR_HOSTS) as cluster:
        sleeping = cluster.popen("node3", ["sleep", "1000"])
        traces = Traces(cluster.directory)
        assert outside() <= before
    assert not traces.left()
    assert sleeping.wait(PATIENCE) != 0
    cluster.close()


def test_nothing_is_left_when_building_fails(monkeypatch: pytest.MonkeyPatch):
    built: List[Traces] = []

    def fail(cluster: Cluster) -> None:
        built.append(Traces(cluster.directory))
        raise RuntimeError("as arranged")

    monkeypatch.setattr(Cluster, "_connect_hosts", fail)
    with pytest.raises(RuntimeError, match="as arranged"):
        Cluster().__enter__()
    assert not built[0].left()


def test_a_host_that_cannot_start_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    broken = tmp_path / "sshd"
    broken.write_text("#!/bin/sh\necho no sshd today >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(system, "PATH", f"{tmp_path}:{system.PATH}")
    with pytest.raises(ClusterError, match="^the hosts did not start: no sshd today"):  # not: "… (waited 20 s)"
        Cluster().__enter__()


@pytest.fixture
def builder() -> Iterator[Tuple[subprocess.Popen[str], Traces]]:
    """A process that builds a cluster, freezes a host of it and waits, and what is to be seen of it."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUILDER], env=ENVIRON, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Traces(Path(process.stdout.readline().strip()))
        finally:
            process.kill()


@alone
@pytest.mark.faults
def test_nothing_is_left_when_the_builder_is_killed(builder: Tuple[subprocess.Popen[str], Traces]):
    process, traces = builder
    before = outside()
    process.kill()
    assert process.wait(PATIENCE) == -signal.SIGKILL
    traces.wait_until_gone()
    assert outside() <= before


@alone
@pytest.mark.faults
@pytest.mark.parametrize("builder_lives", [False, True])
def test_the_next_build_removes_what_a_killed_keeper_could_not(
    builder: Tuple[subprocess.Popen[str], Traces], builder_lives: bool
):
    process, traces = builder
    os.kill(int((traces.paths[0] / "fabric.pid").read_text()), signal.SIGKILL)
    if builder_lives:
        process.communicate("", timeout=PATIENCE)  # it closes its cluster
        assert process.returncode == 0
    else:
        process.kill()
        process.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (traces.paths[0], True) in clusters():
            assert time.monotonic() < deadline, f"processes of it still live: {traces.left()}"
            time.sleep(0.01)
        assert traces.paths[0].exists()
        with Cluster():
            pass
    traces.wait_until_gone()


@pytest.mark.slow
def test_the_command_for_people():
    command = [sys.executable, "-m", "lab"]
    shape = ["--hosts", "3", "--racks", "3", "--rate", "1gbit", "--rail", "250mbit", "--uplink", "max"]
    with subprocess.Popen([*command, "up", *shape], env=ENVIRON, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        said = ""
        while not said.endswith("takes it down.\n"):
            line = up.stdout.readline()
            assert line, f"it ended: {said}"
            said += line
        assert "node3  rack 2  10.77.0.3  10.77.1.3\n" in said
        config = re.search(r"ssh -F (\S+) node1\n", said)
        assert config is not None
        folder = Path(config[1]).parent
        traces = Traces(folder)
        enter = [*command, "enter", "--cluster", str(folder)]

        def hostname(of: str) -> subprocess.CompletedProcess[str]:
            line = [*enter, of, "hostname"]
            return subprocess.run(line, env=ENVIRON, capture_output=True, text=True, timeout=PATIENCE)

        there = hostname("node3")
        assert there.stdout == "node3\n", there.stderr
        wrong = hostname("node4")
        assert wrong.returncode == 1 and wrong.stderr == f"python -m lab enter: node4 is off, or no host of {folder}\n"
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0
    assert not traces.left()
