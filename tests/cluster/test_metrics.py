"""``ddlrun --metrics`` of a job on two hosts: what each host has sent to the other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.launcher import eventually
from launch.scraped import OPEN_METRICS, Scraped

from lab import Cluster

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

PROGRAM = """
import dataclasses, json, os, sys, time
import ddl, numpy as np
ddl.init()
for _ in range(10):
    ddl.allreduce_(np.ones(300_000, np.float32))
with open(f"new.{ddl.rank()}", "w") as file:
    json.dump(dataclasses.asdict(ddl.metrics()), file)
os.rename(f"new.{ddl.rank()}", f"said.{ddl.rank()}")
while not os.path.exists("end"):
    time.sleep(0.02)
"""
READER = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Accept": sys.argv[2]})
print(urllib.request.urlopen(request, timeout=100).read().decode(), end="")
"""


def scrape_from(cluster: Cluster, host: str, url: str) -> Scraped:
    return Scraped(cluster.run(host, [sys.executable, "-c", READER, url, OPEN_METRICS]).stdout)


@pytest.mark.slow
def test_what_hosts_have_sent(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    line = [sys.executable, "-m", "ddl.launch", "-H", "node1:2,node2:2", "--metrics", "0.0.0.0:0", "program.py"]
    environ, null, pipe = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}, subprocess.DEVNULL, subprocess.PIPE
    job = cluster.popen("node1", line, env=environ, cwd=tmp_path, stdin=null, stdout=pipe, stderr=pipe)
    assert job.stderr is not None
    told = re.fullmatch(r"ddlrun: metrics are at http://0\.0\.0\.0:(\d+)/metrics\n", job.stderr.readline())
    assert told is not None
    url = f"http://{cluster.address('node1')}:{told[1]}/metrics"
    assert eventually(lambda: all((tmp_path / f"said.{rank}").exists() for rank in range(4)))
    ranks = [json.loads((tmp_path / f"said.{rank}").read_text()) for rank in range(4)]
    assert eventually(lambda: scrape_from(cluster, "node2", url).so_far("ddl_operations_total") == 40)
    time.sleep(1.2)  # the next sample of each rank
    scraped = scrape_from(cluster, "node2", url)
    for rank, metrics in enumerate(ranks):
        assert scraped.of("ddl_sent_bytes_total", rank=str(rank)) == metrics["sent_bytes"] > 0
    # The ranks of a host share memory, and send one another nothing.
    sent = [sum(metrics["sent_bytes"] for metrics in ranks[first : first + 2]) for first in (0, 2)]
    assert scraped.links == {("node1", "node2"): sent[0], ("node2", "node1"): sent[1]}
    (tmp_path / "end").touch()
    _, err = job.communicate(timeout=240)
    assert job.returncode == 0, err
