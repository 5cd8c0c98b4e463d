"""The timeline of hosts whose clocks differ: each but the first has a time namespace of its own, some hours ahead.

The offsets are known exactly, as all clocks are those of this machine plus a number. So is how well they are measured.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import pytest
from timelines import ROOT, events_of, names, slices, summary, totals

from lab import FOUR_HOSTS, TWO_HOSTS, Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow]
AHEAD = 5000  #: seconds by which node2 is ahead; node3 is twice that

#: Instead of ssh: what it runs on the other side runs with another clock.
SSH = f"""#!{sys.executable}
import os, shlex, sys
*options, host, command = sys.argv[1:]
seconds = {AHEAD} * (int(host[4:]) - 1)
shifted = f"exec unshare --time --monotonic {{seconds}} --kill-child sh -c {{shlex.quote(command)}}"
os.execv("{shutil.which("ssh")}", ["ssh", *options, host, shifted])
"""

PROGRAM = """
import os, sys, time
import numpy as np
import ddl
from ddl.adapter.step_record import note_step

ddl.init()
rank, last = ddl.rank(), ddl.size() - 1
for step in range(100):
    if rank == last:  # all others have called it before
        while not all(os.path.exists(f"called.{step}.{other}") for other in range(last)):
            time.sleep(0.001)
        time.sleep(0.02)
    work = ddl.world().allreduce_async_(np.ones(1 << 16, np.float32), name="bucket")
    open(f"called.{step}.{rank}", "w").close()
    work.wait()
    ddl.barrier()
    note_step()
    if step % 10 == 0:
        time.sleep(0.05 if rank == 0 else 0)  # a message that is waited for has times
        ddl.world().send(np.ones(9), last) if rank == 0 else ddl.world().recv(np.ones(9), 0) if rank == last else None
"""


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    if subprocess.run(["unshare", "--time", "--monotonic", "1", "true"], check=False).returncode != 0:
        pytest.skip("this kernel gives no time namespaces")
    with Cluster(FOUR_HOSTS) as built:
        yield built


def start(
    cluster: Cluster, folder: Path, hosts: Sequence[str], variables: Mapping[str, str], steps: int = 100
) -> subprocess.Popen[str]:
    """Start a job with a rank on each of these hosts; its timeline is trace.json."""
    (folder / "program.py").write_text(PROGRAM.replace("range(100)", f"range({steps})"))
    line = [sys.executable, "-m", "ddl.launch", "-H", ",".join(f"{host}:1" for host in hosts)]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    given = [*line, "--timeline", str(folder / "trace.json"), "program.py"]
    environ = {"PYTHONPATH": ROOT, **variables}
    return cluster.popen("node1", given, env=environ, cwd=folder, stdin=null, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize("count", [2, 4])
def test_clocks_are_aligned(hosts: Cluster, tmp_path: Path, count: int) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    file, used = tmp_path / "trace.json", hosts.hosts[:count]
    job = start(hosts, tmp_path, used, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    _, err = job.communicate(timeout=240)
    assert job.returncode == 0, err
    events = events_of(file)
    assert sorted(names(events)) == [f"rank {rank:03} (host node{rank + 1})" for rank in range(count)]
    told = json.loads(summary(file, "--json"))
    assert told["clocks"].pop("node1") == {"offset_us": 0.0, "error_us": 0.0}
    for host, clock in told["clocks"].items():
        wrong = clock["offset_us"] - 1e6 * AHEAD * (int(host[4:]) - 1)
        print(f"{host}: known to {clock['error_us']} us, wrong by {wrong:.3f} us")
        assert abs(wrong) <= clock["error_us"] + 0.01
        assert clock["error_us"] < 100_000  # 0.2 ms on an idle machine
    assert len(told["clocks"]) == count - 1
    sums = totals(events)
    assert sums["checked"] == 100 and sums["impossible"] == sums["missing"] == sums["partial"] == 0, sums
    assert told["late"][0]["rank"] == count - 1 and told["late"][0]["share"] > 0.4
    assert re.search(r"the clock of host node2 is (4999.99|5000.00)\d+ s ahead, known to \d+ µs", summary(file))
    times = [event["ts"] for event in slices(events)]
    assert min(times) >= 0 and max(times) < 1000e6  # not hours, as clocks are apart
    assert len(slices(events, "send")) == len(slices(events, "recv")) == 10
    sends = {event["ts"]: event for event in slices(events, "send")}
    flows = [event for event in events if event["ph"] == "s" and event["ts"] in sends]
    assert flows, "no arrow from a send"


@pytest.mark.faults
def test_a_host_is_lost(clusters_can_be_built: None, tmp_path: Path) -> None:
    """What its ranks did until then is there, and why the job has ended."""
    file = tmp_path / "trace.json"
    with Cluster(TWO_HOSTS) as cluster:
        job = start(cluster, tmp_path, cluster.hosts, {}, steps=100_000)
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_bytes().count(b'"step 50"') == 2) and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.power_off("node2")
        _, err = job.communicate(timeout=120)
    assert job.returncode not in (0, None), err
    events = events_of(file)
    assert len(slices(events, "step")) > 98
    assert file.read_text().endswith("\n]\n")
    told = summary(file)
    assert "all hosts have the same clock" in told and "verdict: " in told, told
