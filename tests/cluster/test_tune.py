"""``ddl tune`` between hosts: jobs on them use its table, mode ``p`` makes one, and docs/tune.md says what works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Dict, Iterator, List

import pytest

from ddl.tools.simulate.description import read
from ddl.tuning.table import Table
from lab import TWO_RACKS, Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
TRAIN = "import ddl\nddl.init()\nassert ddl.allreduce(1.0, op=ddl.Sum) == ddl.size()\n"
HOSTS = "node1:2,node2:2"
MODULES = {"ddl": "ddl.tools", "ddlrun": "ddl.launch"}


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(Shape(2, slots=2, rails=(10**9,))) as built:
        yield built


def run(hosts: Cluster, home: Path, *line: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables: Dict[str, str] = {
        "PYTHONPATH": str(ROOT),
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "DDL_TUNED": "",
    }
    command = [sys.executable, "-m", MODULES[line[0]], *line[1:]]
    return hosts.run("node1", command, env={**variables, **more}, cwd=home, timeout=240, check=False)


def commands() -> List[str]:
    lines = re.findall(
        r"^    ((?:DDL_LOG=info )?ddl.*?)(?: {2,}#.*)?$", (ROOT / "docs" / "tune.md").read_text(), re.MULTILINE
    )
    return [command for command in lines if "INFO" not in command]


@pytest.mark.slow
def test_commands_of_tune_md(hosts: Cluster, tmp_path: Path) -> None:
    """In their order: later ones use the files of earlier ones."""
    (tmp_path / "train.py").write_text(TRAIN)
    lines = commands()
    assert len(lines) == 7
    for command in lines:
        words = shlex.split(command)
        more = dict(word.split("=") for word in words[:1] if "=" in word)
        if words[:2] == ["ddl", "tune"]:
            words.insert(2, "--even-if-busy")  # other tests may run here
        done = run(hosts, tmp_path, *words[len(more) :], **more)
        assert done.returncode == 0, done.stderr
        if more:
            assert "allreduce" in done.stderr and "(default)" in done.stderr
    assert (tmp_path / "tuned.toml").exists()


def test_the_file_of_tune_md_is_a_table_and_a_machine(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "tune.md").read_text(), re.DOTALL)
    (tmp_path / "tuned.toml").write_text(block)
    assert Table.parse(block).cluster.hosts == ("node1:2", "node2:2")
    assert read(str(tmp_path / "tuned.toml")).machine.size == 4


@pytest.mark.alone  # it measures
@pytest.mark.slow
def test_a_job_goes_by_the_table_that_was_measured_on_its_hosts(hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = run(hosts, tmp_path, "ddl", "tune", "--even-if-busy", "-H", HOSTS, "--seconds", "3", "--sizes", "8,64K,1M")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / ".config" / "ddl").iterdir()
    assert f"written to {path} on node1" in done.stdout
    table = Table.parse(path.read_text())
    assert table.cluster.hosts == ("node1:2", "node2:2") and (table.topology, table.local_size) == ("2x2", 2)
    (network,) = table.machine["network"]
    assert 50e6 < network["bandwidth_bytes_per_s"] < 250e6 and 0 < network["latency_s"] < 0.01
    job = run(hosts, tmp_path, "ddlrun", "-H", HOSTS, "--mode", "p", "train.py", DDL_LOG="info")
    assert job.returncode == 0, job.stderr
    assert f"algorithms are chosen by {path}" in job.stderr  # not measured again
    assert len(re.findall("allreduce beyond", job.stderr)) == 1
    turned = run(hosts, tmp_path, "ddlrun", "-H", "node2:2,node1:2", "train.py", DDL_LOG="info")
    assert "chosen by" not in turned.stderr  # another order of hosts is another cluster
    forced = run(hosts, tmp_path, "ddlrun", "-H", HOSTS, "--mode", "r", "train.py", DDL_LOG="info")
    assert "ring (forced by DDL_ALGORITHM=ring)" in forced.stderr


#: Sums, which are right in whatever order the hosts are; and how rank 0 finds the job laid out.
LAID_OUT = """
import ddl, numpy as np
ddl.init()
x = np.arange(1 << 20, dtype=np.float32) % 61 + ddl.rank()
ddl.allreduce_(x, op=ddl.Sum)
assert np.array_equal(x, (np.arange(1 << 20) % 61) * ddl.size() + sum(range(ddl.size())))
if ddl.rank() == 0:
    topology = ddl.world()._group.topology
    print("laid out as", topology, topology.order)
"""
DEALT = "node1:2,node3:2,node2:2,node4:2"  #: over two racks in turn


@pytest.mark.alone  # it measures
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [TWO_RACKS], indirect=True)
def test_racks_are_found_and_the_next_job_is_laid_out_by_them(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAID_OUT)
    done = run(cluster, tmp_path, "ddl", "tune", "--even-if-busy", "-H", DEALT, "--seconds", "16", "--sizes", "1M")
    assert done.returncode == 0, done.stderr
    assert "racks node1 node2 | node3 node4: " in done.stdout
    (path,) = (tmp_path / ".config" / "ddl").iterdir()
    table = Table.parse(path.read_text())
    assert table.racks is not None, done.stdout
    assert table.racks.groups == ((0, 2), (1, 3)) and table.topology == "2x2x2"
    assert 2 * table.racks.between_bytes_per_s < table.racks.within_bytes_per_s < 1.3e8
    assert [network["name"] for network in table.machine["network"]] == ["hosts", "racks"]
    job = run(cluster, tmp_path, "ddlrun", "-H", DEALT, "train.py", DDL_LOG="info")
    assert "laid out as 2x2x2 (0, 1, 4, 5, 2, 3, 6, 7)" in job.stdout, job.stderr
    assert "2x2x2 is laid out by racks node1 node2 | node3 node4: " in job.stderr
    forced = run(cluster, tmp_path, "ddlrun", "-H", DEALT, "--mode", "2x4", "train.py")
    assert f"laid out as 2x4 {tuple(range(8))}" in forced.stdout, forced.stderr


@pytest.mark.alone  # it measures
@pytest.mark.slow
@pytest.mark.parametrize("cluster", [Shape(4, slots=2, rails=(10**9,))], indirect=True)
def test_four_hosts_on_one_switch_are_no_racks(cluster: Cluster, tmp_path: Path) -> None:
    done = run(cluster, tmp_path, "ddl", "tune", "--even-if-busy", "-H", DEALT, "--seconds", "12", "--sizes", "1M")
    assert done.returncode == 0, done.stderr
    assert "racks: none" in done.stdout
    (path,) = (tmp_path / ".config" / "ddl").iterdir()
    table = Table.parse(path.read_text())
    assert table.racks is None and table.topology == "2x4"


@pytest.mark.slow
def test_mode_p_measures_at_the_start(hosts: Cluster, tmp_path: Path) -> None:
    # Other tests may run beside it, and a table that was measured then would not be kept.
    (tmp_path / "train.py").write_text("from ddl.tuning.measure import other_work\nother_work.MOST = 1e9\n" + TRAIN)
    job = run(hosts, tmp_path, "ddlrun", "-H", HOSTS, "--mode", "p:2x2", "train.py", DDL_LOG="info")
    assert job.returncode == 0, job.stderr
    (path,) = (tmp_path / ".config" / "ddl").iterdir()
    assert f"the next start on these hosts will use {path}" in job.stderr
    assert Table.parse(path.read_text()).cluster.dimensions == "2x2"


@pytest.mark.slow
def test_the_comparison_with_the_built_in_table_runs(clusters_can_be_built: None) -> None:
    """How fast it is here and now is not asserted."""
    line = [sys.executable, "-m", "benchmarks.predictions.tune_check", "--seconds", "1", "--starts", "1"]
    ended = subprocess.run([*line, "--sizes", "64,64K"], capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert "built-in / tuned" in ended.stdout, ended.stderr
    assert len(ended.stdout.partition("built-in / tuned")[2].split("\n")) == 4


def test_a_host_that_cannot_be_reached_is_named(hosts: Cluster, tmp_path: Path) -> None:
    done = run(hosts, tmp_path, "ddl", "tune", "--even-if-busy", "-H", "node1:2,node7:2", "--start-timeout", "5")
    assert done.returncode == 1
    assert "node7" in done.stderr and done.stdout == ""
