"""``ddl doctor`` and ``ddl topo`` on hosts that are made ill on purpose: every illness must be named, and nothing else.

Several illnesses are provoked at once where they do not hide one another, as a run takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import xml.dom.minidom
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from ddl import _core
from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
TWO_AND_A_SLOW_RAIL = Shape(2, rails=(10**9, 10**9 // 8))
THREE_WITH_RAILS = Shape(3, rails=(None, None))
FOUR = Shape(4)
#: What a busy machine may add at any time: it is shared with whatever runs beside the test.
NOISE = {("warning", "latency"), ("warning", "bandwidth")}


@dataclass
class Seen:
    """What a run of ``ddl doctor`` said."""

    status: int
    out: str
    err: str
    verdicts: List[Dict[str, Any]]

    def find(self, level: str, check: str) -> Dict[str, Any]:
        matching = [verdict for verdict in self.verdicts if (verdict["level"], verdict["check"]) == (level, check)]
        assert len(matching) == 1, (level, check, self.verdicts)
        return matching[0]

    @property
    def bad(self) -> set[Tuple[str, str]]:
        return {(verdict["level"], verdict["check"]) for verdict in self.verdicts if verdict["level"] != "ok"}


def ddl(cluster: Cluster, *words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        **environ,
    }
    line = [sys.executable, "-m", "ddl.tools", *words]
    return cluster.run("node1", line, env=variables, cwd=cwd, timeout=240, check=False)


def doctor(cluster: Cluster, *words: str, cwd: Path, **environ: str) -> Seen:
    path = cwd / "doctor.json"
    done = ddl(cluster, "doctor", "--json", str(path), *words, cwd=cwd, **environ)
    assert path.exists(), done.stdout + done.stderr
    return Seen(done.returncode, done.stdout, done.stderr, json.loads(path.read_text())["verdicts"])


def shell(cluster: Cluster, host: str, *lines: str) -> None:
    cluster.run(host, ["sh", "-ec", "\n".join(lines)])


@pytest.mark.alone  # it measures
@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [TWO_AND_A_SLOW_RAIL], indirect=True)
def test_healthy_hosts_a_slow_rail_and_the_commands_of_the_document(own_cluster: Cluster, tmp_path: Path) -> None:
    """The document's commands run as they stand there, but for the names of hosts' interfaces and the file's place."""
    (tmp_path / "train.py").touch()
    text = (ROOT / "docs" / "doctor.md").read_text()
    commands = re.findall(r"^    ddl (.*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(commands) == 7
    said = {}
    for command in commands:
        done = ddl(own_cluster, *shlex.split(command.replace("eth1", "rail1")), cwd=tmp_path)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert re.fullmatch(r"(wrote \S+ \(.*\)\n)?", done.stderr), (command, done.stderr)
        said[command] = done.stdout

    def measured(part: str, *patterns: str) -> str:
        """What the command says of rails; again if beside it something was busy: a rail carries the most it has."""
        command = next(line for line in commands if part in line)
        for _ in range(5):
            if all(re.search(pattern, said[command], re.MULTILINE) for pattern in patterns):
                return said[command]
            said[command] = ddl(own_cluster, *shlex.split(command.replace("eth1", "rail1")), cwd=tmp_path).stdout
        raise AssertionError(f"{patterns} five times not in:\n{said[command]}")

    with_script = measured(
        "train.py",
        r"^warning +bandwidth +all hosts +rail1 carries 1\d\d Mb/s, rail0 9\d\d Mb/s; ",
        r"^node1 +node2 +rail0 +[\d.]+ .s +9\d\d Mb/s +9\d\d Mb/s$",
    )
    assert re.search(r"^ok +script +all hosts +train.py is there$", with_script, re.MULTILINE)
    by_rail_1 = next(text for command, text in said.items() if "network-interface" in command)
    assert re.search(r"remedy: let data go by the faster one: --network-interface rail0", by_rail_1)
    tree = measured("topo", r"^rail0 10.77.0.0/24 \(data\): [\d.]+ .s, 9\d\d Mb/s")
    assert "├─ ranks 4–7 share memory (proved)" in tree
    drawing = (tmp_path / "hosts.svg").read_text()
    xml.dom.minidom.parseString(drawing)
    assert "node2" in drawing and "10.77.1.0/24" in drawing
    # Bad usage ends at once.
    for words in (["doctor", "-H", "node1:x"], ["topo", "--from", "nothing.json"], ["doctor", "-np", "0"]):
        done = ddl(own_cluster, *words, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(f"ddl {words[0]}: ")


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [THREE_WITH_RAILS], indirect=True)
def test_an_ill_host(own_cluster: Cluster, tmp_path: Path) -> None:
    """node2 has few descriptors, one core, a wrong clock, wrong names, no script, another MTU, and a cut rail."""
    cluster = own_cluster
    clock, names, job = tmp_path / "clock", tmp_path / "names", tmp_path / "job"
    clock.mkdir()
    job.mkdir()
    (job / "train.py").touch()
    patch = "import time; truth = time.time; time.time = lambda: truth() + 90"
    names.write_text("10.77.0.1 node1\n127.0.1.1 node2\n10.77.0.1 node3\n")
    shell(
        cluster,
        "node2",
        "sshd=$(cat /run/sshd.pid)",
        "prlimit --pid $sshd --nofile=48:48",
        "taskset --pid 1 $sshd",
        f"mount --bind {names} /etc/hosts",
        f"mount -t tmpfs tmpfs {clock}",
        f"echo '{patch}' >{clock}/sitecustomize.py",
        f"mount -t tmpfs tmpfs {job}",
        "mount -t tmpfs -o size=1m tmpfs /dev/shm",
        "ip link set rail0 mtu 1400",
        # An adapter that locks memory, and little that may be locked.
        "mount -t tmpfs tmpfs /sys/class",
        "mkdir -p /sys/class/infiniband/mlx5_0",
        "prlimit --pid $sshd --memlock=65536:65536",
    )
    cluster.cut("node2", 1)
    path = f"{ROOT}:{clock}"
    seen = doctor(cluster, "-H", "node1:2,node2:2,node3:2", "train.py", cwd=job, PYTHONPATH=path)
    assert seen.status == 1, seen.out
    for level, check, words in (
        ("error", "descriptors", "may open 48 files"),
        ("warning", "cpus", "all 2 ranks are bound to one of"),
        ("warning", "clock", "node1 ↔ node2, node2 ↔ node3: clocks are 90 s apart"),
        ("warning", "shm", "/dev/shm has 1 MiB"),
        ("warning", "memlock", "only 64 KiB of memory may be locked, and the RDMA adapter mlx5_0"),
        ("warning", "mtu", "node1 ↔ node2, node2 ↔ node3: MTU 1400 on one side of rail0 and 1500 on the other"),
        ("warning", "ports", "on rail1"),
        ("error", "script", "train.py is not there"),
        ("error", "names", "the name node3 leads to 10.77.0.1, which is node1"),
        ("warning", "names", "its own name, node2, leads to 127.0.1.1"),
    ):
        verdict = seen.find(level, check)
        assert words in verdict["text"] and verdict["hosts"] == ["node2"] and verdict["remedy"], verdict
    expected = {"descriptors", "cpus", "clock", "shm", "memlock", "mtu", "ports", "script", "names"}
    assert {check for level, check in seen.bad - NOISE} == expected
    last = seen.out.splitlines()
    assert last[-2].startswith("error") and re.fullmatch(r"\d+ ok, \d+ warnings, 3 errors", last[-1])


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [THREE_WITH_RAILS], indirect=True)
def test_a_firewall_and_a_black_hole_for_large_packets(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    cluster.refuse("node2", "node3")
    for host in ("node1", "node2"):
        shell(cluster, host, "ip link set rail1 mtu 9000")  # and the switch between them still has 1500
    job = tmp_path / "job"
    job.mkdir()
    shell(cluster, "node3", "ip link set rail1 down", f"mount -t tmpfs tmpfs {tmp_path}")
    seen = doctor(cluster, "-H", ",".join(cluster.hosts), cwd=job)
    assert seen.status == 1, seen.out
    ports = seen.find("error", "ports")
    assert ports["text"] == "node3 → node2: no answer to connections on rail0"
    assert ports["hosts"] == ["node2", "node3"] and "32768" in ports["remedy"]
    mtu = seen.find("warning", "mtu")
    assert mtu["text"].startswith("node1 ↔ node2: packets of 9000 bytes vanish on rail1")
    directory = seen.find("error", "directory")
    assert (directory["hosts"], directory["text"]) == (["node3"], f"the directory {job} is not there")
    assert seen.bad - NOISE == {("error", "ports"), ("warning", "mtu"), ("error", "directory")}
    assert re.search(r"^node2 +node3 +rail0 .* timeout$", seen.out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(4, rails=(None, None))], indirect=True)
def test_a_rail_that_does_not_lead_everywhere(own_cluster: Cluster, tmp_path: Path) -> None:
    """Data is to go by rail1, where node2's cable is out and node3 has no route; ranks may share no memory."""
    cluster = own_cluster
    cluster.link_down("node2", 1)
    shell(cluster, "node3", "ip route del 10.77.1.0/24")
    chosen = ["-H", "node1:2,node2:2,node3:2", "--network-interface", "10.77.1.0/24"]
    seen = doctor(cluster, *chosen, cwd=tmp_path, DDL_SHM="0")
    assert seen.status == 1, seen.out
    matching = [verdict for verdict in seen.verdicts if (verdict["level"], verdict["check"]) == ("error", "interface")]
    assert sorted((verdict["hosts"], verdict["text"]) for verdict in matching) == [
        (["node2"], "rail1 (10.77.1.2) has no carrier"),
        (["node3"], "there is no route to node1, node2"),
    ]
    sharing = seen.find("warning", "sharing")
    assert len(sharing["hosts"]) == 3 and "2 ranks are in 2 groups that share no memory" in sharing["text"]
    assert {(level, check) for level, check in seen.bad - NOISE} == {
        ("error", "interface"),
        ("error", "ports"),
        ("warning", "sharing"),
    }
    loopback = doctor(cluster, "-H", "node1:1,node2:1", "--network-interface", "lo", cwd=tmp_path)
    text = "data is awaited on loopback (127.0.0.1), where no other host comes"
    assert loopback.status == 1 and loopback.find("error", "interface")["text"] == text


@pytest.mark.slow
def test_one_machine_twice_and_a_core_that_does_not_load(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    core = Path(_core.__file__)
    nothing = tmp_path / "nothing.so"
    nothing.write_bytes(b"no library")
    shell(cluster, "node2", f"mount --bind {nothing} {core}")
    seen = doctor(cluster, "-H", "node1,node2,10.77.0.1", cwd=tmp_path)
    assert seen.status == 1, seen.out
    twins = seen.find("error", "interface")
    assert (twins["hosts"], twins["text"]) == (["node1", "10.77.0.1"], "they have the same address, 10.77.0.1")
    broken = seen.find("error", "core")
    assert broken["hosts"] == ["node2"] and "native core cannot be used: ImportError" in broken["text"]
    assert "the native core cannot be loaded" in seen.find("error", "sharing")["text"]


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(6)], indirect=True)
def test_hosts_on_which_nothing_starts(own_cluster: Cluster, tmp_path: Path) -> None:
    """Another version, no Python, a dead host, one that cannot call back, one that nobody knows; and a good one."""
    cluster = own_cluster
    other = tmp_path / "other"
    shutil.copytree(ROOT / "ddl", other / "ddl", ignore=shutil.ignore_patterns("*.so", "__pycache__", "bench"))
    (other / "ddl" / "_version.py").write_text('__version__ = "0.0.1"\n')
    shell(cluster, "node2", f"mount --bind {other}/ddl {ROOT}/ddl")
    shell(cluster, "node3", f"mount -t tmpfs tmpfs {Path(sys.executable).parent}")
    cluster.power_off("node4")
    cluster.refuse("node1", "node5")
    hosts = ",".join([*cluster.hosts, "nobody"])
    seen = doctor(cluster, "-H", hosts, "--start-timeout", "10", "--network-interface", "10.77.0.0/16", cwd=tmp_path)
    assert seen.status == 1, seen.out
    said = {verdict["hosts"][0]: verdict for verdict in seen.verdicts if verdict["level"] == "error"}
    assert sorted(said) == ["nobody", "node2", "node3", "node4", "node5"]
    assert {host: verdict["check"] for host, verdict in said.items()} == {
        "node2": "version", "node3": "python", "node4": "start", "node5": "start", "nobody": "start",
    }  # fmt: skip
    for host, words, remedy in (
        ("node2", "host node2 has DDL 0.0.1, this one", "install the same version"),
        ("node3", "ended with status 127", "at the same path"),
        ("node4", "", "ssh node4 true"),
        ("node5", "no agent has called from", "32768"),
        ("nobody", "Could not resolve hostname", "/etc/hosts"),
    ):
        assert words in said[host]["text"] and remedy in said[host]["remedy"], said[host]
    ok = next(verdict for verdict in seen.verdicts if (verdict["level"], verdict["check"]) == ("ok", "ports"))
    assert ok["hosts"] == ["node1", "node6"]  # they were looked at all the same
    done = ddl(cluster, "topo", "-H", "node1,node6,nobody", cwd=tmp_path)
    assert done.returncode == 1 and "└─ not there: ssh ended with status 255" in done.stdout
    assert "ranks 2, 3 share memory (proved)" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [Shape(2)], indirect=True)
def test_ctrl_c_and_a_host_that_dies_meanwhile(own_cluster: Cluster, tmp_path: Path) -> None:
    """Neither hangs; a host that is gone midway is named."""
    cluster = own_cluster
    slow = tmp_path / "slow"
    slow.mkdir()
    # Round trips without end: so the test finds the probes at work.
    (slow / "sitecustomize.py").write_text("import ddl.tools.doctor.link as link\nlink._ROUND_TRIPS = 10**9\n")
    environ = {"PYTHONPATH": f"{ROOT}:{slow}", "PATH": os.environ["PATH"]}
    line = [sys.executable, "-m", "ddl.tools", "doctor", "-H", "node1:1,node2:1"]
    pipe = subprocess.PIPE
    for how in ("SIGINT", "host"):
        job = cluster.popen(
            "node1", line, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        for host in cluster.hosts:
            wait_for(cluster, host)
        if how == "host":
            cluster.kill("node2")
        else:
            cluster.run("node1", ["pkill", "-INT", "-f", "ddl.tools doctor"])
        out, err = job.communicate(timeout=240)
        if how == "host":
            assert job.returncode == 1, err
            assert re.search("^error +(start|probe) .*the connection to its agent is gone", out, re.MULTILINE), out
        else:
            assert (job.returncode, out) == (130, ""), err
    assert not running(cluster, "node1")


def running(cluster: Cluster, host: str) -> Sequence[str]:
    seen = cluster.run(host, ["ps", "-eo", "args"], check=False).stdout
    return [line for line in seen.splitlines() if line.startswith(f"{sys.executable} -m ddl.tools.doctor.probe")]


def wait_for(cluster: Cluster, host: str) -> None:
    """Wait until a probe has started there, and has had the time to begin to measure."""
    deadline = time.monotonic() + 100
    while not running(cluster, host):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
