"""Every command of the documents about ddlrun, as it stands there, on hosts of the names that stand there."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Iterator, List

import pytest

from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "import ddl\nddl.init()\nassert ddl.allreduce(1.0, op=ddl.Sum) == ddl.size()\n"


def commands(document: str) -> List[str]:
    lines = re.findall(r"^    (ddlrun .*)$", (ROOT / "docs" / document).read_text(), re.MULTILINE)
    assert lines, document
    return lines


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(Shape(4, slots=2, rails=(None, None))) as built:
        yield built


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("command", [*commands("ddlrun.md"), *commands("topology.md")])
def test_commands_of_the_documents(command: str, hosts: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    (tmp_path / "hosts.sh").write_text("#!/bin/sh\necho node1:2\necho node2:2\n")
    (tmp_path / "hosts.sh").chmod(0o755)
    (tmp_path / "ranks").write_text(
        "rank 0=node1 slot=0\nrank 1=node2 slot=0\nrank 2=node1 slot=1\nrank 3=node2 slot=1\n"
    )
    (tmp_path / "job.toml").write_text('np = 4\nhosts = "node1:2,node2:2"\nenv = ["A=1"]\n')
    variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    line = [sys.executable, "-m", "ddl.launch", *shlex.split(command)[1:]]
    done = hosts.run("node1", line, env=variables, cwd=tmp_path, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    if "--output-dir" in command:
        assert len(list((tmp_path / "logs").iterdir())) == 4
