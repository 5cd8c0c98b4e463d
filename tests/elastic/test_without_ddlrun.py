"""Ranks that another launcher started (DDL_ELASTIC=1): the store is in rank 0, and dies with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

import pytest

PROGRAM = """
import functools, os, signal, sys
import numpy as np
import ddl
from ddl.adapter import generation
from ddl.bootstrap import meeting

# No rank is left out for being slow.
meeting.ElasticLimits = functools.partial(meeting.ElasticLimits, answer_patience=100.0)
ddl.init()
first, step = ddl.rank(), 0
while step < 60:
    if first in map(int, sys.argv[1].split(",")) and step == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        assert (ddl.allreduce(np.ones(10), op="sum") == ddl.size()).all()
        step += 1
    except ddl.PeerLost:
        step = max(said["finished"] for said in generation.next_generation(finished=step).said.values())
print("rank", ddl.rank(), "of", ddl.size(), "was", first, "generation", ddl.metrics().generation)
"""


def torchrun_environment(rank: int, size: int, folder: Path) -> Dict[str, str]:
    """Return what torchrun tells its workers; it does not matter here who tells it."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": 0}
    more = {"GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "elastic"}
    ours = {"DDL_ELASTIC": 1, "DDL_RENDEZVOUS_DIR": folder, "DDL_TIMEOUT": 100, "DDL_START_TIMEOUT": 100}
    return {**os.environ, **{name: str(value) for name, value in {**numbers, **more, **ours}.items()}}


@pytest.mark.few(2)
@pytest.mark.parametrize(("size", "victims"), [(3, [0]), (2, [0]), (2, [1]), (4, [0, 2]), (3, [1])])
def test_ranks_and_the_store_in_one_of_them_are_killed(size: int, victims: List[int], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, ",".join(map(str, victims))]
    processes = [
        subprocess.Popen(command, env=torchrun_environment(r, size, tmp_path), stdout=subprocess.PIPE, text=True)
        for r in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    survivors = [rank for rank in range(size) if rank not in victims]
    lines = [outputs[rank].rpartition(" generation")[0] for rank in survivors]
    assert lines == [f"rank {new} of {len(survivors)} was {old}" for new, old in enumerate(survivors)]
