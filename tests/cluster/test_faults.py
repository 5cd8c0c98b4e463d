"""What the other side of a connection sees of each fault, as on real hosts: docs/cluster.md says why that matters."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from typing import Iterator, List

import pytest
from cluster import talk
from launch.launcher import eventually

from lab import TWO_RACKS, Cluster, ClusterError

pytestmark = pytest.mark.faults
TALK = [sys.executable, talk.__file__]
PATIENT = 100.0  #: seconds for an answer that must come; TCP tries again less and less often


class Talk:
    """A connection from node1 to node2, where every question is answered, if it can be."""

    def __init__(self, asking: subprocess.Popen[str], answering: subprocess.Popen[str]) -> None:
        self._asking, self.answering = asking, answering

    def ask(self, seconds: float) -> str:
        assert self._asking.stdin is not None and self._asking.stdout is not None
        print(seconds, file=self._asking.stdin, flush=True)
        return self._asking.stdout.readline().strip()


@contextlib.contextmanager
def talking(cluster: Cluster, through_ssh: bool = False) -> Iterator[Talk]:
    pipe = subprocess.PIPE
    address = cluster.address("node2")
    echo: List[str] = [*TALK, "echo", address]
    at, line = ("node1", ["ssh", "node2", shlex.join(echo)]) if through_ssh else ("node2", echo)
    with cluster.popen(at, line, stdin=subprocess.DEVNULL, stdout=pipe) as answering:
        assert answering.stdout is not None and answering.stdout.readline() == "listening\n"
        with cluster.popen("node1", [*TALK, "ask", address], stdin=pipe, stdout=pipe) as asking:
            try:
                assert asking.stdout is not None and asking.stdout.readline() == "connected\n"
                talk = Talk(asking, answering)
                assert talk.ask(PATIENT) == "answer"
                yield talk
            finally:
                assert asking.stdin is not None
                asking.stdin.close()
                for process in (asking, answering):  # done, unless the test has failed, or the fault is still there
                    try:
                        process.wait(1)
                    except subprocess.TimeoutExpired:
                        process.kill()


def carrier(cluster: Cluster, host: str) -> str:
    return cluster.run(host, ["cat", "/sys/class/net/rail0/carrier"]).stdout.strip()


def test_a_cut_is_silent_until_it_is_mended(own_cluster: Cluster):
    with talking(own_cluster) as talk:
        own_cluster.cut("node2")
        assert talk.ask(1) == "silence"
        assert carrier(own_cluster, "node1") == carrier(own_cluster, "node2") == "1"
        own_cluster.mend("node2")
        assert talk.ask(PATIENT) == "answer"


def test_a_link_that_is_down_is_seen_by_its_host_only(own_cluster: Cluster):
    with talking(own_cluster) as talk:
        own_cluster.link_down("node2")
        assert talk.ask(1) == "silence"
        assert carrier(own_cluster, "node1") == "1" and carrier(own_cluster, "node2") == "0"
        own_cluster.link_up("node2")
        assert talk.ask(PATIENT) == "answer"


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "arrives"), [("deafen", True), ("mute", False)])
def test_one_way_only(own_cluster: Cluster, fault: str, arrives: bool):
    def received() -> int:
        return int(own_cluster.run("node1", ["cat", "/sys/class/net/rail0/statistics/rx_packets"]).stdout)

    with talking(own_cluster) as talk:
        getattr(own_cluster, fault)("node2")
        before = received()
        say = f"for i in $(seq 50); do echo > /dev/udp/{own_cluster.address('node1')}/9; done"
        own_cluster.run("node2", ["bash", "-c", say])
        # A few that others send may come in any case.
        assert eventually(lambda: received() - before >= 50) if arrives else received() - before < 50
        assert talk.ask(1) == "silence"
        own_cluster.restore("node2")
        assert talk.ask(PATIENT) == "answer"


@pytest.mark.parametrize("own_cluster", [TWO_RACKS], indirect=True, ids=["2 racks"])
def test_racks_that_are_split(own_cluster: Cluster):
    def reach(host: str, other: str, seconds: float = PATIENT) -> bool:
        line = ["timeout", str(seconds), "bash", "-c", f": > /dev/tcp/{own_cluster.address(other)}/22"]
        return own_cluster.run(host, line, check=False).returncode == 0

    assert reach("node1", "node3")
    own_cluster.split(1)
    assert reach("node1", "node2") and reach("node3", "node4")
    assert not reach("node1", "node3", 1) and not reach("node4", "node2", 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("through_ssh", [False, True])
def test_a_frozen_host_goes_on_when_it_is_thawed(own_cluster: Cluster, through_ssh: bool):
    with talking(own_cluster, through_ssh) as talk:
        own_cluster.freeze("node2")
        assert talk.ask(1) == "silence"
        own_cluster.thaw("node2")
        assert talk.ask(PATIENT) == "answer"


def test_a_host_that_is_killed_says_goodbye(own_cluster: Cluster):
    with talking(own_cluster) as talk:
        own_cluster.kill("node2")
        assert talk.ask(PATIENT) == "closed"
        assert talk.answering.wait(PATIENT) != 0
    with pytest.raises(ClusterError, match="node2 is off"):
        own_cluster.run("node2", ["true"])
    assert own_cluster.run("node1", ["hostname"]).stdout == "node1\n"


@pytest.mark.few(1)
@pytest.mark.parametrize("frozen", [False, True])
def test_a_host_without_power_says_nothing(own_cluster: Cluster, frozen: bool):
    with talking(own_cluster) as talk:
        if frozen:
            own_cluster.freeze("node2")
        own_cluster.power_off("node2")
        assert talk.ask(1) == "silence"
        assert talk.answering.wait(PATIENT) != 0
    with pytest.raises(ClusterError, match="node2 is off"):
        own_cluster.power_off("node2")
