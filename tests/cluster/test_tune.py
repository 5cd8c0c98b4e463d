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

from ddl.tools.desk import Cluster, Shape
from ddl.tools.simulate.description import read
from ddl.tuning.table import Table

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
TRAIN = "import ddl\nddl.init()\nassert ddl.allreduce(1.0, op=ddl.Sum) == ddl.size()\n"
HOSTS = "node1:2,node2:2"
MODULES = {"ddl": "ddl.tools", "ddlrun": "ddl.run"}


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
    return hosts.run("node1", command, env={**variables, **more}, cwd=home, timeout=100, check=False)


def commands() -> List[str]:
    found = re.findall(
        r"^    ((?:DDL_LOG=info )?ddl.*?)(?: {2,}#.*)?$", (ROOT / "docs" / "tune.md").read_text(), re.MULTILINE
    )
    return [command for command in found if "INFO" not in command]


def test_commands_of_tune_md(hosts: Cluster, tmp_path: Path) -> None:
    """In their order: later ones use the files of earlier ones."""
    (tmp_path / "train.py").write_text(TRAIN)
    lines = commands()
    assert len(lines) == 7
    for command in lines:
        words = shlex.split(command)
        more = dict(word.split("=") for word in words[:1] if "=" in word)
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


def test_a_job_goes_by_the_table_that_was_measured_on_its_hosts(hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = run(hosts, tmp_path, "ddl", "tune", "-H", HOSTS, "--seconds", "3", "--sizes", "8,64K,1M")
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


def test_mode_p_measures_at_the_start(hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    job = run(hosts, tmp_path, "ddlrun", "-H", HOSTS, "--mode", "p:2x2", "train.py", DDL_LOG="info")
    assert job.returncode == 0, job.stderr
    (path,) = (tmp_path / ".config" / "ddl").iterdir()
    assert f"{path} keeps them" in job.stderr
    assert Table.parse(path.read_text()).cluster.dimensions == "2x2"


def test_the_comparison_with_the_built_in_table_runs(clusters_can_be_built: None) -> None:
    """How fast it is here and now is not asserted."""
    line = [sys.executable, str(ROOT / "benchmarks" / "tune_check.py"), "--seconds", "1", "--starts", "1"]
    ended = subprocess.run([*line, "--sizes", "64,64K"], capture_output=True, text=True, timeout=60)
    assert "built-in / tuned" in ended.stdout, ended.stderr
    assert len(ended.stdout.partition("built-in / tuned")[2].split("\n")) == 4


def test_a_host_that_cannot_be_reached_is_named(hosts: Cluster, tmp_path: Path) -> None:
    done = run(hosts, tmp_path, "ddl", "tune", "-H", "node1:2,node7:2", "--start-timeout", "5")
    assert done.returncode == 1
    assert "node7" in done.stderr and done.stdout == ""
