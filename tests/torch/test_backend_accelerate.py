"""Accelerate trains on the backend "ddl" to what it trains to on gloo, also when its own launcher starts each rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from process_groups import launch, named_when_killed, require, trained_alike

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
import ddl_torch

dist.init_process_group(sys.argv[1])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
assert dist.get_backend() == sys.argv[1] and accelerator.num_processes == 2
set_seed(1)
x = torch.randn(250, 10)  # uneven: the last batches are filled up
data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.Adam(model.parameters(), 0.01), DataLoader(data, batch_size=16, shuffle=True)
)
assert isinstance(model, torch.nn.parallel.DistributedDataParallel)
for epoch in range(6):
    right = []
    for x, y in loader:
        with accelerator.accumulate(model):
            answer = model(x)
            accelerator.backward(torch.nn.functional.cross_entropy(answer, y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            right.append(accelerator.gather_for_metrics(answer.argmax(1) == y))
right = torch.cat(right)
assert len(right) == 250 and right.float().mean() > 0.8
accelerator.save_state("state")
accelerator.wait_for_everyone()
before = [p.detach().clone() for p in model.parameters()]
with torch.no_grad():
    for p in model.parameters():
        p.zero_()
accelerator.load_state("state")
assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before))
if accelerator.is_main_process:
    torch.save(torch.cat([p.ravel() for p in before]), sys.argv[2])
accelerator.end_training()
"""


def test_training_as_with_gloo(tmp_path: Path) -> None:
    require("accelerate")
    trained_alike(PROGRAM, tmp_path)


LAUNCHED = """
import pytest
import torch
import torch.distributed as dist
import ddl_torch
from accelerate import Accelerator, PartialState
from accelerate.utils import InitProcessGroupKwargs

with pytest.raises(ValueError, match="backend ddl is not avail"):  # as docs/trainers.md says
    Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="ddl")])
PartialState._reset_state()
dist.init_process_group("ddl")
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(2, 1))
assert isinstance(model, torch.nn.parallel.DistributedDataParallel) and accelerator.num_processes == 2
total = accelerator.reduce({"rank": torch.tensor([1.0 + dist.get_rank()])}, "sum")
assert total["rank"].tolist() == [3.0]
padded = accelerator.pad_across_processes(torch.ones(2 + dist.get_rank()))
assert accelerator.gather(padded).tolist() == [1, 1, 0, 1, 1, 1]
everybody = accelerator.gather(torch.tensor([dist.get_rank()]))
assert everybody.tolist() == [0, 1] and dist.get_backend() == "ddl"
open(f"rank.{dist.get_rank()}", "w").close()
accelerator.end_training()
"""


def test_accelerates_launcher_starts_each_rank(tmp_path: Path) -> None:
    """``accelerate launch --cpu`` starts one process, so ddlrun starts as many of it as there are ranks."""
    require("accelerate")
    program = tmp_path / "program.py"
    program.write_text(LAUNCHED)
    options = ("--cpu", "--num_processes=1", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    launch("ddlrun", [sys.executable, "-m", "accelerate.commands.launch", *options, str(program)], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


KILLED = """
import os
import signal
import torch
import torch.distributed as dist
import ddl_torch
from accelerate import Accelerator

dist.init_process_group("ddl")
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(2, 1))
for step in range(5):
    if step == 2 and accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    accelerator.backward(model(torch.ones(1, 2)).sum())
"""


@pytest.mark.faults
def test_a_rank_is_killed(tmp_path: Path) -> None:
    require("accelerate")
    named_when_killed(KILLED, tmp_path)
