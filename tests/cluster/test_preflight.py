"""What ddlrun makes sure of before any rank starts: a word for each host that is not fit, and nothing has happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes
THREE = Shape(3, rails=(None, None))
STARTED = "open(f'started.{__import__(\"os\").environ[\"DDL_RANK\"]}', 'w')\n"


def run(cluster: Cluster, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run train.py, which leaves a file where it starts, on three hosts; the folder is theirs in common.

    Names have more than a second to be looked up: a slow machine is no reason for a warning.
    """
    (folder / "train.py").write_text(STARTED)
    patient = folder / "patient"
    patient.mkdir(exist_ok=True)
    (patient / "sitecustomize.py").write_text("import ddl.launch.agent.preflight as own\nown._NAME_SECONDS = 100.0\n")
    environ = {"PYTHONPATH": f"{ROOT}:{patient}", "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/root")}
    line = [sys.executable, "-m", "ddl.launch", "-H", "node1:1,node2:1,node3:1", *options, "train.py"]
    return cluster.run("node1", line, env=environ, cwd=folder, timeout=240, check=False)


def started(folder: Path) -> int:
    return len(list(folder.glob("started.*")))


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [THREE], indirect=True)
def test_nothing_starts_anywhere_unless_all_hosts_are_fit(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    done = run(cluster, tmp_path)
    assert (done.returncode, done.stderr, started(tmp_path)) == (0, "", 3)
    for path in tmp_path.glob("started.*"):
        path.unlink()

    cluster.refuse("node2", "node3", 1)
    done = run(cluster, tmp_path, "--network-interface", "rail1")
    assert done.returncode == 1
    assert "ddlrun: node3 cannot connect to node2 at 10.77.1.2:" in done.stderr
    assert ": no answer. Ranks could not send one another data." in done.stderr

    for options, words in [
        (["--network-interface", "lo"], "cannot connect to node2 at 127.0.0.1:"),
        (["--network-interface", "ib0"], "there is no network interface 'ib0' on node"),
    ]:
        done = run(cluster, tmp_path, *options)
        assert done.returncode == 1 and words in done.stderr, done.stderr

    done = run(cluster, tmp_path)  # by the other rail, where nothing is wrong
    assert (done.returncode, done.stderr, started(tmp_path)) == (0, "", 3)
    for path in tmp_path.glob("started.*"):
        path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cluster.run("node2", ["mount", "--bind", str(elsewhere), str(tmp_path)])
    done = run(cluster, tmp_path)
    assert done.returncode == 1
    assert f"host node2 (rank 1): the script train.py is not in {tmp_path}" in done.stderr
    assert started(tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize("own_cluster", [THREE], indirect=True)
def test_a_name_that_leads_to_another_host_is_a_warning(own_cluster: Cluster, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("127.0.0.1 localhost\n10.77.0.1 node1\n127.0.1.1 node2\n10.77.0.1 node3\n")
    own_cluster.run("node2", ["mount", "--bind", str(names), "/etc/hosts"])
    done = run(own_cluster, tmp_path)
    assert done.returncode == 0 and started(tmp_path) == 3
    warning = "ddlrun: warning: on node2, the name node3 leads to 10.77.0.1, which is node1; correct DNS or /etc/hosts"
    assert done.stderr == warning + "\n"
