"""What a program does at its end may use the job, if it said so before the job began; and nothing hangs then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable, List

import pytest
from launch.launcher import Launcher

pytestmark = pytest.mark.processes
Script = Callable[[str], str]

PROGRAM = """
import atexit
import numpy as np, ddl
atexit.register(lambda: print("sum", float(ddl.allreduce(np.ones(1), op="sum")[0]), flush=True))
atexit.register(lambda: 1 // 0)  # an error there ends nothing
ddl.init()
atexit.register(lambda: print("last", ddl.rank(), flush=True))
"""
OF_TORCH = """
import atexit, sys
import torch, ddl_torch
import torch.distributed as dist
def last():
    x = torch.ones(1)
    dist.all_reduce(x)
    sys.stdout.write(f"sum {float(x)}\\n")  # in one piece: ranks of torchrun share a pipe
    sys.stdout.flush()
    dist.destroy_process_group()
atexit.register(last)
dist.init_process_group("ddl")
"""


@pytest.mark.parametrize("hosts", [("-np", "2"), ("-H", "localhost:1,127.0.0.1:1")], ids=["alone", "agents"])
def test_a_handler_from_before_the_job(launcher: Launcher, script: Script, hosts: List[str]) -> None:
    done = launcher.run(*hosts, script(PROGRAM))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] last 0", "[0] sum 2.0", "[1] last 1", "[1] sum 2.0"]
    assert done.stderr.count("ZeroDivisionError") == 2 and "InvalidState" not in done.stderr


TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"),
    *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
)


@pytest.mark.parametrize("line", [("-m", "ddl.launch", "-np", "2"), TORCHRUN], ids=["ddlrun", "torchrun"])
def test_a_handler_of_torch(launcher: Launcher, tmp_path: Path, line: List[str]) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(OF_TORCH)
    done = launcher.run(*line, str(program), command=sys.executable)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["2.0", "2.0"]
