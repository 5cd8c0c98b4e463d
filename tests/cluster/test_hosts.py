"""What a cluster's hosts have of their own, how they reach each other, how fast, and what a program on them gets."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, List, Sequence, Tuple

import pytest
from cluster import talk
from launch.launcher import eventually

from lab import FOUR_HOSTS, TWO_HOSTS, TWO_RACKS, TWO_RAILS, Cluster, ClusterError, Shape, system, why_not

SHAPES = {"2x1": TWO_HOSTS, "4x2": FOUR_HOSTS, "2 racks": TWO_RACKS, "2 rails": TWO_RAILS}
NAMESPACES = ("net", "mnt", "uts", "ipc", "pid")
TALK = [sys.executable, talk.__file__]


def on(*names: str) -> Any:
    return pytest.mark.parametrize("cluster", [SHAPES[name] for name in names], indirect=True, ids=names)


@pytest.mark.few(3)
@on(*SHAPES)
def test_every_host_is_apart_from_the_others_and_from_this_machine(cluster: Cluster):
    seen = {os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES}
    for host in cluster.hosts:
        mark = f"mark-of-{host}-{os.getpid()}"
        script = (
            f"touch /dev/shm/{mark} /run/{mark}; hostname; ls /dev/shm /run; for n; do readlink /proc/self/ns/$n; done"
        )
        name, *rest = cluster.run(host, ["sh", "-c", script, "sh", *NAMESPACES]).stdout.split()
        listed, own = rest[:-5], rest[-5:]
        assert name == host
        assert [entry for entry in listed if entry.startswith("mark")] == [mark, mark]
        assert not seen & set(own)
        seen |= set(own)
        assert not Path("/dev/shm", mark).exists() and not Path("/run", mark).exists()
    assert len(cluster.hosts) == cluster.shape.hosts


@on("2 rails")
def test_every_rail_has_a_subnet(cluster: Cluster):
    for number, host in enumerate(cluster.hosts, start=1):
        lines = cluster.run(host, ["ip", "-o", "-4", "addr", "show", "scope", "global"]).stdout.splitlines()
        assert [line.split()[1:4] for line in lines] == [
            ["rail0", "inet", f"10.77.0.{number}/24"],
            ["rail1", "inet", f"10.77.1.{number}/24"],
        ]
        assert cluster.run(host, ["ls", "/sys/class/net"]).stdout.split() == ["lo", "rail0", "rail1"]
        names = cluster.run(host, ["getent", "hosts", "node1", "node2-rail1"]).stdout.split()
        assert names[0] == "10.77.0.1" and "10.77.1.2" in names


@pytest.mark.slow
@on("4x2")
def test_ssh_from_every_host_to_every_other_one(cluster: Cluster):
    script = "for other; do ssh $other hostname || exit; done"
    others = {host: [other for other in cluster.hosts if other != host] for host in cluster.hosts}
    with contextlib.ExitStack() as stack:
        logins = {
            host: stack.enter_context(
                cluster.popen(host, ["sh", "-c", script, "sh", *others[host]], stdout=subprocess.PIPE)
            )
            for host in cluster.hosts
        }
        for host, login in logins.items():
            assert login.communicate(timeout=240)[0].split() == others[host]


@on("2x1")
def test_ssh_from_outside(cluster: Cluster):
    line = ["ssh", "-F", str(cluster.ssh_config), "node2", "hostname; grep SigIgn /proc/self/status"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    name, _, ignored = ended.stdout.split()
    assert name == "node2"
    assert int(ignored, 16) & 0b110 == 0, "what sshd starts must not ignore Ctrl-C"
    inside = cluster.run("node1", ["ssh", "node2", "grep", "SigIgn", "/proc/self/status"]).stdout
    assert int(inside.split()[1], 16) & 0b110 == 0


def rate(cluster: Cluster, flows: Sequence[Tuple[str, str, int]]) -> float:
    """Send 20 MB from host to host over rail, in all flows at once; return bits per second, together.

    From before they are sent until all have come: so who gets no processor for a while makes it slower, never faster.
    """
    ends: List[Tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        receivers = []
        for _, target, rail in flows:
            line = [*TALK, "swallow", cluster.address(target, rail)]
            receiver = stack.enter_context(cluster.popen(target, line, stdout=subprocess.PIPE))
            assert receiver.stdout is not None and receiver.stdout.readline() == "listening\n"
            receivers.append(receiver)
        begin = time.monotonic()
        for source, target, rail in flows:
            stack.enter_context(cluster.popen(source, [*TALK, "pour", cluster.address(target, rail), "20000000"]))
        for receiver in receivers:
            _, end, count = map(float, receiver.communicate(timeout=240)[0].split())
            ends.append((end, count))
    assert {count for _, count in ends} == {2e7}
    return 8 * 2e7 * len(ends) / (max(end for end, _ in ends) - begin)


def assert_rate(cluster: Cluster, expected: float, *flows: Tuple[str, str, int]) -> None:
    """No flow is faster than its wire, ever; on a busy machine it may be slower, so there are many tries for that."""
    tried = []
    for _ in range(20):
        tried.append(rate(cluster, flows))
        assert tried[-1] < 1.1 * expected
        if tried[-1] > 0.5 * expected:
            return
    raise AssertionError(f"{flows} of {expected / 1e6:.0f} Mb/s: {[round(bits / 1e6) for bits in tried]} Mb/s")


@pytest.mark.alone
@on("2 rails")
def test_rails_have_their_rates_in_both_directions_and_their_own_traffic(cluster: Cluster):
    def sent(rail: int) -> int:
        return int(cluster.run("node1", ["cat", f"/sys/class/net/rail{rail}/statistics/tx_bytes"]).stdout)

    before = sent(0), sent(1)
    assert_rate(cluster, 1e9, ("node1", "node2", 0))
    assert sent(0) - before[0] > 2e7 and sent(1) - before[1] < 1e5
    assert_rate(cluster, 0.25e9, ("node2", "node1", 1))
    assert_rate(cluster, 0.25e9, ("node1", "node2", 1))
    assert sent(1) - before[1] > 2e7


@pytest.mark.alone
@on("2 racks")
def test_racks_share_an_uplink(cluster: Cluster):
    assert [cluster.shape.rack(number) for number in range(4)] == [0, 0, 1, 1]
    assert_rate(cluster, 1e9, ("node3", "node4", 0))
    assert_rate(cluster, 0.25e9, ("node1", "node3", 0), ("node2", "node4", 0))


def test_a_program_gets_environment_and_directory_and_returns_output_and_status(cluster: Cluster, tmp_path: Path):
    script = ["sh", "-c", "pwd; echo $OURS $HOME; echo wrong >&2; exit 3"]
    ended = cluster.run("node1", script, env={"OURS": "1"}, cwd=tmp_path, check=False)
    assert ended.stdout.split() == [str(tmp_path), "1", os.environ["HOME"]]
    assert ended.stderr == "wrong\n" and ended.returncode == 3
    assert cluster.run("node1", ["pwd"]).stdout.strip() == os.getcwd()
    with pytest.raises(ClusterError, match=r"^node1: \['sh'.* ended with status 3: .*wrong"):
        cluster.run("node1", [*script[:2], "echo wrong >&2; exit 3"])
    with pytest.raises(ClusterError, match="node9 is off, or no host of"):
        cluster.run("node9", ["true"])


def test_processes_have_other_ids_on_this_machine(cluster: Cluster):
    start = ["sh", "-c", "sleep 1234 >/dev/null 2>&1 & echo $!"]
    inside = {host: int(cluster.run(host, start).stdout) for host in cluster.hosts}
    outside = {host: cluster.processes(host)[pid] for host, pid in inside.items()}
    assert len(set(outside.values())) == 2
    for host, pid in outside.items():
        assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x001234\0"
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda host=host: inside[host] not in cluster.processes(host))


def processes(cluster: Cluster, host: str) -> List[Tuple[str, ...]]:
    """Name, state and parent of every process of a host, but for the one that lists them."""
    listed = cluster.run(host, ["sh", "-c", "cat /proc/[0-9]*/stat || true"]).stdout
    return re.findall(r"^\d+ \((?!cat)(.*)\) (\S) (\d+)", listed, re.MULTILINE)


def test_a_program_that_takes_too_long_is_killed_and_orphans_are_reaped(cluster: Cluster):
    before = processes(cluster, "node1")
    with pytest.raises(ClusterError, match="not done after 0.2 s"):
        cluster.run("node1", ["sh", "-c", "sleep 1234 & sleep 1234"], timeout=0.2)
    cluster.run("node1", ["sh", "-c", "(sleep 0.1 &)"])

    def left() -> List[str]:
        # Whom nsenter started (parent 0) is reaped by this machine's first process, which may take its time.
        return sorted(name for name, *rest in processes(cluster, "node1") if rest != ["Z", "0"])

    assert sorted(name for name, *_ in before) == ["sh", "sleep", "sshd"]
    assert eventually(lambda: left() == ["sh", "sleep", "sshd"]), left()


def test_where_no_cluster_can_be_built_it_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert "run it as root" in str(why_not())
        with pytest.raises(ClusterError, match="run it as root"):
            Cluster().__enter__()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(system, "PATH", str(tmp_path))
    assert str(why_not()).endswith("apt-get install iproute2 openssh-client openssh-server util-linux")


@pytest.mark.parametrize("wrong", [{"hosts": 0}, {"hosts": 2, "racks": 3}, {"hosts": 2, "rails": (0,)}])
def test_shapes_that_make_no_sense(wrong: Any):
    with pytest.raises(ValueError, match="should have 1 to 99 hosts"):
        Shape(**wrong)
