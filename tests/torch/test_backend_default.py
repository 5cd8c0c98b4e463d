"""The backend "ddl" without its name, as torch's default on CPUs; and without an import, by its entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from process_groups import begin, installed, launch
from ranks import run as run_ranks

import ddl

torch = pytest.importorskip("torch")
FINDS_ENTRY_POINTS = hasattr(torch.distributed.Backend, "_ensure_backend_registered")  # torch 2.15
pytestmark = pytest.mark.processes

BARE = """
import os
import time
import torch
import torch.distributed as dist
import ddl_torch

assert dist.get_default_backend_for_device("cpu") == "gloo"  # nothing changes without the call
for _ in range(2):
    ddl_torch.use_as_default()
assert dist.get_default_backend_for_device("cpu") == "ddl"
dist.init_process_group()
assert isinstance(dist.group.WORLD, ddl_torch.DDLProcessGroup) and dist.get_backend_config() == "cpu:ddl"
x = torch.full((5,), float(dist.get_rank()))
dist.all_reduce(x)
assert x.tolist() == [1.0] * 5
ddl_torch.use_as_default()  # the group is what it asks for
rank = dist.get_rank()
dist.destroy_process_group()
if rank == 0:
    open("destroyed", "w").close()
while not os.path.exists("destroyed"):  # else rank 1 may still find torch's old store, which rank 0 is about to end
    time.sleep(0.001)
dist.init_process_group("gloo")  # a script that names one gets it
assert dist.get_backend() == "gloo"
dist.destroy_process_group()
open("rank." + os.environ["RANK"], "w").close()
"""
NO_IMPORT = """
import sys
import torch
import torch.distributed as dist

assert "ddl_torch" not in sys.modules
dist.init_process_group(sys.argv[1])
x = torch.full((5,), float(dist.get_rank()))
dist.all_reduce(x)
assert x.tolist() == [1.0] * 5 and "ddl_torch" in sys.modules
open(f"rank.{dist.get_rank()}", "w").close()
dist.destroy_process_group()
"""


def started(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.glob("rank.*"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddlrun", "torchrun"])
def test_a_group_without_a_name(launcher: str, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("on a machine with a GPU, torch chooses the backend by that")
    program = tmp_path / "program.py"
    program.write_text(BARE)
    launch(launcher, [str(program)], tmp_path)
    assert started(tmp_path) == ["rank.0", "rank.1"]


def too_late(path: str) -> str:
    import ddl_torch

    dist, _, _ = begin(path, "gloo")
    with pytest.raises(ddl.InvalidState) as caught:
        ddl_torch.use_as_default()
    assert dist.get_default_backend_for_device("cpu") == "gloo"
    dist.destroy_process_group()
    return str(caught.value)


def test_another_group_is_there_already(tmp_path: Path) -> None:
    for text in run_ranks(1, too_late, str(tmp_path / "store")):
        assert "with the backends cpu:gloo" in text and "before init_process_group" in text


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["ddl", "cpu:ddl"])
def test_no_import_where_torch_looks_for_entry_points(backend: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(NO_IMPORT)
    environ = {**os.environ, "PYTHONPATH": installed(tmp_path), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "ddl.launch", "-np", "2", str(program), backend]
    done = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    if FINDS_ENTRY_POINTS:
        assert done.returncode == 0, done.stdout + done.stderr
        assert started(tmp_path) == ["rank.0", "rank.1"]
    else:  # torch's own words, which docs/troubleshooting.md explains
        assert done.returncode != 0 and re.search("Unknown (c10d )?backend type (ddl|DDL)", done.stderr)
        assert started(tmp_path) == []
