"""Two hosts that two networks join: both carry data, and one of them may be slow, or be cut, without an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Callable, Dict, List, Sequence

import pytest
from ipv6 import needs_kernel_with_ipv6

from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
EQUAL = Shape(2, rails=(10**9, 10**9))
IPV6 = Shape(2, rails=EQUAL.rails, ip="6")
BOTH_VERSIONS = [EQUAL, pytest.param(IPV6, marks=needs_kernel_with_ipv6)]
UNEQUAL = Shape(2, rails=(10**9, 10**9 // 4))

# 8 MiB, 256 KiB and 8 B, again and again; all results have the same bits.
PROGRAM = """
import sys
import numpy as np
import ddl
ddl.init()
arrays = [ddl.empty(2 << 20, np.float32), np.empty(64 << 10, np.float32), np.empty(2, np.float32)]
wanted = None
for step in range(int(sys.argv[1])):
    for number, x in enumerate(arrays):
        x[:] = np.random.default_rng(7 * ddl.rank() + number).random(x.size, np.float32)
        ddl.allreduce_(x)
    sums = [x.tobytes() for x in arrays]
    wanted = wanted or sums
    assert sums == wanted, step
    if ddl.rank() == 0:
        print("step", step, flush=True)
whole = ddl.allgather(np.frombuffer(wanted[0], np.uint8)[None, :4096])
assert (whole[0] == whole[1]).all()
"""


def start(cluster: Cluster, steps: int, *options: str, program: str = PROGRAM, **environ: str) -> subprocess.Popen[str]:
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "DDL_TIMEOUT": "100", **environ}
    line = [sys.executable, "-m", "ddl.launch", "-H", "node1:1,node2:1", "--no-prefix", *options]
    pipe = subprocess.PIPE
    whole = [*line, sys.executable, "-c", program, str(steps)]
    return cluster.popen("node1", whole, env=variables, cwd="/", stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)


def finish(job: subprocess.Popen[str]) -> str:
    _, err = job.communicate(timeout=240)
    assert job.returncode == 0, err
    return err


def sent(cluster: Cluster) -> List[int]:
    """Bytes that node1 has sent on each rail."""
    paths = [f"/sys/class/net/rail{rail}/statistics/tx_bytes" for rail in range(len(cluster.shape.rails))]
    return [int(text) for text in cluster.run("node1", ["cat", *paths]).stdout.split()]


@pytest.mark.alone  # it compares what rails carry
@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [EQUAL], indirect=True)
def test_equal_rails_carry_as_much(own_cluster: Cluster) -> None:
    assert finish(start(own_cluster, 12)) == ""
    first, second = sent(own_cluster)
    assert 0.3 < second / first < 3, (first, second)  # on an idle machine 0.95 to 1.05
    finish(start(own_cluster, 6, "--network-interface", "rail1,rail0"))
    assert min(sent(own_cluster)) > min(first, second) + 10_000_000


@pytest.mark.alone  # it compares what rails carry: on a busy machine the processor may be slower than either
@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [UNEQUAL], indirect=True)
def test_a_slow_rail_gets_less(own_cluster: Cluster) -> None:
    finish(start(own_cluster, 12))
    first, second = sent(own_cluster)
    assert 0.1 < second / first < 0.6, (first, second)


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [EQUAL], indirect=True)
@pytest.mark.parametrize(
    ("options", "environ"),
    [((), {"DDL_RAILS": "1"}), (("--network-interface", "rail0"), {})],
    ids=["setting", "option"],
)
def test_one_rail_if_that_is_wanted(own_cluster: Cluster, options: List[str], environ: Dict[str, str]) -> None:
    finish(start(own_cluster, 2, *options, **environ))
    first, second = sent(own_cluster)
    assert second < 100_000 < first


def cut(cluster: Cluster) -> None:
    cluster.cut("node2", 1)


def reset(cluster: Cluster) -> None:
    cluster.run("node2", ["ss", "-K", "dst", for_ss(cluster.address("node1", 1))], check=False)


def for_ss(address: str) -> str:
    return f"[{address}]" if ":" in address else address


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("own_cluster", BOTH_VERSIONS, indirect=True, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("fault", [cut, reset])
def test_a_rail_is_lost_in_the_middle(own_cluster: Cluster, fault: Callable[[Cluster], None]) -> None:
    """Operations go on over the other one, with the same bits; where the network comes back, it is used again."""
    with start(own_cluster, 120 if fault is cut else 40) as job:
        assert job.stdout is not None
        wait_for(job.stdout, "step 5\n")
        fault(own_cluster)
        wait_for(job.stdout, "step 15\n")
        before = sent(own_cluster)[1]
        own_cluster.mend("node2", 1)
        err = finish(job)
    name = f"rank 0: the rail from {own_cluster.address('node1', 1)} to {own_cluster.address('node2', 1)} "
    how = "silent|closed: .* while receiving" if fault is cut else "closed: .* while (receiving|sending)"
    said = rf"{re.escape(name)}\(rank 1 \(host node2\)\) is ({how}), and the job goes on"
    assert len(re.findall(said, err)) == 1, err
    assert err.count(f"{name}works again") == (fault is cut), err
    # TCP tries again later and later, so it may take seconds until the rail is known to work.
    assert fault is reset or sent(own_cluster)[1] > before + 4_000_000


# Operations, a pause in which nothing is under way, until there is a file, and more operations.
PAUSE = """
import os, sys, time
import numpy as np
import ddl
ddl.init()
x = ddl.empty(1 << 20, np.float32)
for step in range(int(sys.argv[1])):
    if step == 5:
        time.sleep(1)
        if ddl.rank() == 0:
            print("pause", flush=True)
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
    x[:] = 1
    ddl.allreduce_(x, op=ddl.Sum)
    assert (x == 2).all()
"""


def without_address(cluster: Cluster) -> None:
    cluster.run("node2", ["ip", "addr", "del", f"{cluster.address('node2', 1)}/24", "dev", "rail1"])


def without_carrier(cluster: Cluster) -> None:
    cluster.link_down("node2", 1)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("own_cluster", [EQUAL], indirect=True, ids=[""])
@pytest.mark.parametrize("fault", [without_address, without_carrier])
def test_a_rail_is_lost_while_nothing_is_under_way(
    own_cluster: Cluster, tmp_path: Path, fault: Callable[[Cluster], None]
) -> None:
    """The kernel of node2 cannot even begin to send there. Rank 1 has to notice it, too, not only the other end."""
    go = tmp_path / "go"
    with start(own_cluster, 20, "--env", f"GO={go}", program=PAUSE) as job:
        assert job.stdout is not None
        wait_for(job.stdout, "pause\n")
        fault(own_cluster)
        go.touch()
        err = finish(job)
    own, far = own_cluster.address("node2", 1), own_cluster.address("node1", 1)
    assert f"rank 1: the rail from {own} to {far} (rank 0 (host node1)) is silent, and the job goes on" in err, err


def wait_for(stream: IO[str], line: str) -> None:
    """Read until that line; a job that ends before has ended badly, and ``finish`` says how."""
    while True:
        seen = stream.readline()
        if seen in (line, ""):
            return


# Groups of ranks, one after the other: for each the ranks ask the store.
GROUPS = """
import sys
import time
import numpy as np
import ddl
ddl.init()
for step in range(int(sys.argv[1])):
    time.sleep(0.1)
    group = ddl.world().subset([0, 1])
    assert group.allreduce(np.ones(1 << 20, np.float32), op="sum").sum() == 2 << 20
    group.close()
    if ddl.rank() == 0:
        print("step", step, flush=True)
"""


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("own_cluster", BOTH_VERSIONS, indirect=True, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("options", [(), ("--encrypt",)], ids=["plain", "encrypted"])
def test_ranks_ask_the_store_when_their_first_rail_is_lost_for_good(
    own_cluster: Cluster, options: Sequence[str]
) -> None:
    with start(own_cluster, 40, *options, program=GROUPS, DDL_START_TIMEOUT="40") as job:
        assert job.stdout is not None
        wait_for(job.stdout, "step 10\n")  # until then, the further ways to the store are open
        own_cluster.cut("node2", 0)
        finish(job)


# Operations until it is killed. Rank 1 says more than the connections of its agent can hold.
TALKATIVE = """
import os
import numpy as np
import ddl
ddl.init()
x = ddl.empty(1 << 20, np.float32)
if ddl.rank() == 1:
    print(os.getpid(), os.environ["DDL_STORE"], flush=True)
step = 0
while True:
    x[:] = 1
    ddl.allreduce_(x, op=ddl.Sum)
    assert (x == 2).all()
    if ddl.rank() == 1:
        print("step", step, "." * 20000, flush=True)
        step += 1
"""


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 100
    while not done():
        assert time.monotonic() < deadline, f"not within 100 s: {what}"
        time.sleep(0.2)


def ways(cluster: Cluster, port: str, rail: int) -> int:
    """Connections of node2 to ddlrun on one rail."""
    there = ["dst", for_ss(cluster.address("node2", rail)), "and", "sport", "=", f":{port}"]
    return len(cluster.run("node1", ["ss", "-Htn", "state", "established", *there]).stdout.splitlines())


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("own_cluster", "options"),
    [(EQUAL, ()), (EQUAL, ("--encrypt",)), pytest.param(IPV6, (), marks=needs_kernel_with_ipv6)],
    indirect=["own_cluster"],
    ids=["plain", "encrypted", "IPv6"],
)
def test_each_rail_is_lost_in_turn(own_cluster: Cluster, options: Sequence[str]) -> None:
    """Also the one by which ddlrun found its ranks: nothing that they say is lost or comes twice."""
    with start(own_cluster, 0, *options, program=TALKATIVE) as job, ThreadPoolExecutor(1) as pool:
        assert job.stdout is not None
        pid, store = job.stdout.readline().split()
        port = store.rpartition(":")[2]
        rest = pool.submit(job.communicate, timeout=240)
        wait_until(lambda: ways(own_cluster, port, 1) == 2, "the agent and the rank come over the second rail, too")
        own_cluster.cut("node2", 0)
        wait_until(lambda: ways(own_cluster, port, 0) == 0, "the first rail is known to be lost")
        own_cluster.mend("node2", 0)
        wait_until(lambda: ways(own_cluster, port, 0) == 2, "the first rail is used again")
        own_cluster.cut("node2", 1)
        wait_until(lambda: ways(own_cluster, port, 1) == 0, "the second rail is known to be lost")
        own_cluster.run("node2", ["kill", "-9", pid])
        out, err = rest.result()
    assert job.returncode == 137, err
    assert "lost rank 1 (host node2): its process ended" in err, err
    steps = [line.split() for line in out.splitlines()]
    assert len(steps) > 100
    assert steps == [["step", str(number), "." * 20000] for number in range(len(steps))]
