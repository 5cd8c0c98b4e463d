"""The backend "ddl" under what starts ranks: ddlrun, torchrun, and processes that a program starts itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from process_groups import launch, run

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import ddl_torch as ddl

dist.init_process_group(sys.argv[1])
x = torch.full((5,), float(dist.get_rank()))
dist.all_reduce(x)
assert x.tolist() == [1.0] * 5
assert (ddl.rank(), ddl.size(), ddl.local_size()) == (dist.get_rank(), 2, 2)
with open(f"rank.{dist.get_rank()}", "w") as file:
    print("ok", file=file)
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


@pytest.mark.parametrize("backend", ["ddl", "cpu:ddl"])
@pytest.mark.parametrize("launcher", ["ddlrun", "torchrun"])
def test_launchers(launcher: str, backend: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launch(launcher, [str(program), backend], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


def test_spawned_processes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    run([str(program)], tmp_path)
