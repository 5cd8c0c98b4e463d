"""The backend "ddl" under what starts ranks: ddlrun, torchrun, and processes that a program starts itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process_groups import launch, run

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import ddl_torch as ddl

dist.init_process_group(sys.argv[1], init_method=sys.argv[2] if len(sys.argv) > 2 else None)
x = torch.full((5,), float(dist.get_rank()))
dist.all_reduce(x)
assert x.tolist() == [1.0] * 5
assert (ddl.rank(), ddl.size(), ddl.local_size()) == (dist.get_rank(), 2, 2)
with open(f"rank.{dist.get_rank()}", "w") as file:
    print("ok", file=file)
dist.destroy_process_group()
"""
ALONE = """
import torch
import torch.distributed as dist
import ddl_torch

dist.init_process_group("ddl", init_method="ddl://")
x = torch.ones(2)
dist.all_reduce(x)
assert x.tolist() == [1, 1] and dist.get_world_size() == 1
dist.destroy_process_group()
"""
SPAWNED = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import ddl_torch as ddl

def main(rank):
    dist.init_process_group("ddl", init_method="file://" + __file__ + ".meet", rank=rank, world_size=2)
    x = torch.full((5,), float(rank))
    dist.all_reduce(x)
    assert x.tolist() == [1.0] * 5
    assert ddl.local_size() == 2
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, nprocs=2)
"""
LEAVES = """
import os
import time
import torch
import torch.distributed as dist
import ddl_torch

dist.init_process_group("ddl")
dist.all_reduce(torch.ones(1))
open(f"here.{dist.get_rank()}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
rank = dist.get_rank()
dist.destroy_process_group()
open(f"left.{rank}", "w").close()
"""


@pytest.mark.parametrize("backend", ["ddl", "cpu:ddl"])
@pytest.mark.parametrize("launcher", ["ddlrun", "torchrun"])
def test_launchers(launcher: str, backend: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch(launcher, [str(program), backend], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


def test_plain_variables(tmp_path: Path) -> None:
    """No launcher at all: each rank is started with torch's own variables."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    line = [str(program), "ddl"]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: run(line, tmp_path, {**common, "RANK": str(rank)}), range(2)))
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


def test_ddl_finds_the_ranks(tmp_path: Path) -> None:
    """By ``ddl://``: under ddlrun, and in a job of one rank, which nothing started."""
    program, alone = tmp_path / "program.py", tmp_path / "alone.py"
    program.write_text(PROGRAM)
    launch("ddlrun", [str(program), "ddl", "ddl://"], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]
    alone.write_text(ALONE)
    run([str(alone)], tmp_path)


def test_ddl_finds_the_ranks_where_it_has_begun_already(tmp_path: Path) -> None:
    """Without torch's variables, here with those of srun: by DDL's own job, as a rank cannot join that twice."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("dist.init_process_group", "ddl.init()\ndist.init_process_group"))
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    step.update({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "DDL_RENDEZVOUS_DIR": str(tmp_path / "meet")})

    def rank(number: int) -> str:
        own = {**step, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number)}
        return run([str(program), "ddl", "ddl://"], tmp_path, own)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


def test_spawned_processes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    run([str(program)], tmp_path)


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 200  # torch would try for five minutes to reach a store that is gone
    while len(list(folder.glob(pattern))) < 2:
        assert time.monotonic() < deadline, f"there is not yet {pattern} of both ranks"
        time.sleep(0.02)


def test_ranks_leave_though_torchrun_was_killed(tmp_path: Path) -> None:
    """With it goes torch's store, in which rank 0 looks for others that listen."""
    (tmp_path / "program.py").write_text(LEAVES)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"]
    with subprocess.Popen(line, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL) as torchrun:
        try:
            wait_for(tmp_path, "here.*")
        finally:
            torchrun.kill()
    (tmp_path / "go").touch()
    wait_for(tmp_path, "left.*")
