"""The backend "ddl" of ``torch.distributed`` under Slurm: two hosts, by ``srun python train.py`` and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Dict, List

import pytest
from cluster.slurm import slurm, why_no_slurm
from cluster.test_launching import missing

from lab import Cluster

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
import ddl_torch as ddl

for again in range(2):
    if dist.is_initialized():
        rank, destroyed = dist.get_rank(), os.path.join(os.environ["HOME"], "destroyed")
        dist.destroy_process_group()
        if rank == 0:
            open(destroyed, "w").close()
        while not os.path.exists(destroyed):  # else rank 1 may still find torch's store of rank 0, which ends now
            time.sleep(0.001)
    dist.init_process_group("ddl", init_method=sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.full((5,), float(rank))
dist.all_reduce(x)
assert x.tolist() == [1.0] * 5
if rank == 0:
    assert dist.recv(x) == 1 and x[0] == 7
else:
    dist.send(torch.full((5,), 7.0), 0)
assert (rank, ddl.local_size(), ddl.cross_size()) == (int(os.environ["SLURM_PROCID"]), 1, 2)
dist.destroy_process_group()
print("rank", rank, "of", size, "is done")
"""
#: What torch's documentation says to do where nobody sets its variables.
BY_TORCHS_VARIABLES = 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec "$0" "$1" env://'
BY_DDL = 'exec "$0" "$1" ddl://'


@pytest.mark.parametrize("line", [BY_TORCHS_VARIABLES, BY_DDL], ids=["variables", "ddl"])
def test_srun(line: str, cluster: Cluster, tmp_path: Path) -> None:
    reason = why_no_slurm()
    if reason is not None:
        missing(reason)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with slurm(cluster) as variables:
        environ: Dict[str, str] = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **variables}
        if line is BY_TORCHS_VARIABLES:
            environ.update(MASTER_ADDR="node1", MASTER_PORT="29500")  # nobody else is on these hosts
        command: List[str] = ["srun", "-N2", "-n2", "sh", "-c", line, sys.executable, str(program)]
        done = cluster.run("node1", command, env={**os.environ, **environ}, cwd="/", timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 is done", "rank 1 of 2 is done"]
