"""Every command of the documents about ddlrun, as it stands there, on hosts of the names that stand there."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Dict, Iterator, List

import pytest
from cluster.slurm import slurm, why_no_slurm
from ipv6 import KERNEL_KNOWS_IPV6
from launch.launcher import eventually

from lab import Cluster, Shape

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "import ddl\nddl.init()\nassert ddl.allreduce(1.0, op=ddl.Sum) == ddl.size()\n"


def commands(document: str) -> List[str]:
    text = (ROOT / "docs" / document).read_text().replace("alpha:", "node1:").replace("beta:", "node2:")
    lines = re.findall(r"^    (ddlrun .*)$", text, re.MULTILINE)
    assert lines, document
    return lines


@pytest.fixture(scope="module")
def hosts(clusters_can_be_built: None) -> Iterator[Cluster]:
    with Cluster(Shape(4, slots=2, rails=(None, None), ip="both" if KERNEL_KNOWS_IPV6 else "4")) as built:
        yield built


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("command", [*commands("ddlrun.md"), *commands("topology.md"), *commands("cloud.md")])
def test_commands_of_the_documents(command: str, hosts: Cluster, tmp_path: Path) -> None:
    if "fd77" in command and not KERNEL_KNOWS_IPV6:
        pytest.skip("this kernel has no IPv6")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    (tmp_path / "hosts.sh").write_text("#!/bin/sh\necho node1:2\necho node2:2\n")
    (tmp_path / "hosts.sh").chmod(0o755)
    (tmp_path / "ranks").write_text(
        "rank 0=node1 slot=0\nrank 1=node2 slot=0\nrank 2=node1 slot=1\nrank 3=node2 slot=1\n"
    )
    (tmp_path / "job.toml").write_text('np = 4\nhosts = "node1:2,node2:2"\nenv = ["A=1"]\n')
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # "python" is the one that has DDL
    variables = {"PYTHONPATH": str(ROOT), "PATH": path, "HOME": str(tmp_path)}
    line = [sys.executable, "-m", "ddl.launch", *shlex.split(command)[1:]]
    done = hosts.run("node1", line, env=variables, cwd=tmp_path, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    if "--output-dir" in command:
        assert len(list((tmp_path / "logs").iterdir())) == 4


SAVES = """
import signal, sys, ddl
ddl.init()
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("trains", flush=True)
signal.pause()
"""


@pytest.fixture
def with_slurm(hosts: Cluster, tmp_path: Path) -> Iterator[Dict[str, str]]:
    """Slurm on node1 and node2, and a home with the environment that the page speaks of; the variables to use both."""
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    programs = tmp_path / "ddl-env" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("ddlrun", "-m ddl.launch "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    with slurm(hosts) as variables:
        yield {**variables, "HOME": str(tmp_path), "PATH": f"{programs}:{variables['PATH']}"}


@pytest.mark.slow
@pytest.mark.processes
def test_the_commands_of_the_slurm_page(hosts: Cluster, with_slurm: Dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    page = (ROOT / "docs" / "slurm.md").read_text()
    lines = re.findall(r"^    ((?:salloc|srun) (?!.*apptainer).*)$", page, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["salloc", "srun"]
    for line in lines:
        done = hosts.run("node1", shlex.split(line), env=with_slurm, cwd=tmp_path, timeout=240, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_the_script_of_the_slurm_page(hosts: Cluster, with_slurm: Dict[str, str], tmp_path: Path) -> None:
    """It trains, and ranks hear of the SIGTERM that Slurm sends to the script."""
    (script,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "slurm.md").read_text(), re.DOTALL)
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "train.py").write_text(SAVES)
    submit = ["sbatch", "--parsable", "job.sh"]
    job = hosts.run("node1", submit, env=with_slurm, cwd=tmp_path).stdout.strip()
    output = tmp_path / f"digits-{job}.out"

    def printed(word: str) -> bool:
        return output.exists() and output.read_text().count(word) == 4

    assert eventually(lambda: printed("trains"), 240), output.read_text() if output.exists() else "there is no output"
    hosts.run("node1", ["scancel", "--signal=TERM", "--batch", job], env=with_slurm)
    assert eventually(lambda: printed("saved"), 240), output.read_text()
    gone = ["sh", "-c", f"until ! squeue --noheader --jobs {job} 2>/dev/null | grep -q .; do sleep 0.2; done"]
    hosts.run("node1", gone, env=with_slurm, timeout=240)
