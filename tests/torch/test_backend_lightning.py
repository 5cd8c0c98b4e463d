"""Lightning trains on the backend "ddl" to what it trains to on gloo, and its metrics are those of all ranks.

The backend is chosen by its name, by that of a strategy, or as torch's default.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, Dict, List

import pytest
from process_groups import launch, named_when_killed, require, trained_alike
from process_groups import run as run_python
from ranks import run

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = """
import os
import sys
import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset
import ddl_torch

if "DDL_RANK" in os.environ:  # under ddlrun by the name of the strategy, which knows how many ranks there are
    assert "ddl_torch.lightning" not in sys.modules
    import ddl_torch.lightning
    chosen = {"strategy": "ddl"}
else:
    chosen = {"strategy": DDPStrategy(process_group_backend=sys.argv[1]), "devices": 2}

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def training_step(self, batch, number):
        assert dist.get_backend() == sys.argv[1] and dist.get_world_size() == 2
        return self.loss(batch)

    def validation_step(self, batch, number):
        self.log("rank", float(self.global_rank), sync_dist=True)
        self.log("loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)

lightning.seed_everything(1)
x = torch.randn(256, 10)
data = TensorDataset(x, (x[:, :3].sum(1) > 0).long())
model = Model()
trainer = lightning.Trainer(
    **chosen, accelerator="cpu", max_epochs=3, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=16))
assert trainer.callback_metrics["rank"] == 0.5
assert trainer.callback_metrics["loss"] < 0.5
trainer.save_checkpoint("checkpoint")
dist.barrier()
model = Model.load_from_checkpoint("checkpoint")
if trainer.is_global_zero:
    torch.save(torch.cat([p.detach().ravel() for p in model.parameters()]), sys.argv[2])
"""


def test_training_as_with_gloo(tmp_path: Path) -> None:
    require("lightning")
    trained_alike(PROGRAM, tmp_path)


CHOSEN = """
import os
import pytest
import lightning
import torch.distributed as dist
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy
import ddl
import ddl_torch.lightning

quiet = dict(
    accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
ddl_torch.use_as_default()
trainer = lightning.Trainer(strategy="ddp", devices=2, **quiet)  # neither DDL's strategy nor its backend
trainer.fit(BoringModel())
assert trainer.world_size == 2 and isinstance(dist.group.WORLD, ddl_torch.DDLProcessGroup)
trainer = lightning.Trainer(strategy="ddl", **quiet)
trainer.fit(BoringModel())
assert (trainer.world_size, trainer.num_devices, trainer.num_nodes) == (2, 2, 1)
assert trainer.global_rank == trainer.local_rank == dist.get_rank()
wrong = [(dict(devices=3), "devices=3, but the job has 2"), (dict(num_nodes=4), "num_nodes=4, but the job has 1")]
for arguments, text in wrong:
    with pytest.raises(ddl.InvalidArgument, match=text):
        lightning.Trainer(strategy="ddl", **arguments, **quiet)
environment = ddl_torch.lightning.DDLEnvironment()  # for another strategy, which must be told
trainer = lightning.Trainer(strategy=DDPStrategy(), plugins=[environment], devices=2, **quiet)
trainer.fit(BoringModel())
with pytest.raises(ddl.InvalidArgument, match="devices=1, but the job has 2"):
    lightning.Trainer(strategy=DDPStrategy(), plugins=[environment], devices=1, **quiet).fit(BoringModel())
rank = dist.get_rank()
open(f"rank.{rank}", "w").close()
dist.destroy_process_group()
# By a file: rank 1 could still find the store that rank 0 has had for the group before.
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/gloo", rank=rank, world_size=2)
with pytest.raises(ddl.InvalidState, match="the process group is there already, with the backends cpu:gloo"):
    lightning.Trainer(strategy="ddl", **quiet).fit(BoringModel())
dist.destroy_process_group()
"""


def test_the_strategy_and_torchs_default(tmp_path: Path) -> None:
    require("lightning")
    program = tmp_path / "program.py"
    program.write_text(CHOSEN)
    launch("torchrun", [str(program)], tmp_path)
    assert sorted(path.name for path in tmp_path.glob("rank.*")) == ["rank.0", "rank.1"]


ALONE = """
import pytest
import PACKAGE as lightning
from PACKAGE.demos.boring_classes import BoringModel
import ddl
import ddl_torch.lightning

quiet = dict(
    accelerator="cpu", max_steps=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer = lightning.Trainer(strategy=ddl_torch.lightning.DDLStrategy(static_graph=True), **quiet)
trainer.fit(BoringModel())
assert trainer.world_size == 1 and trainer.strategy.model is not None
for wrong in (dict(devices=2), dict(num_nodes=2)):
    with pytest.raises(ddl.InvalidArgument, match="2, but the job has 1 here"):
        lightning.Trainer(strategy="ddl", **wrong, **quiet)
"""


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_without_a_launcher_it_is_a_job_of_one_rank(package: str, tmp_path: Path) -> None:
    require(package.partition(".")[0])
    program = tmp_path / "program.py"
    program.write_text(ALONE.replace("PACKAGE", package))
    run_python([str(program)], tmp_path)


GOES_ON = """
import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
import ddl_torch.lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("training", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, number):
        self.log("loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]), sync_dist=True)
        self.log("highest", float(self.global_rank), sync_dist=True, reduce_fx="max")

    def on_validation_epoch_end(self):
        assert self.all_gather(torch.tensor(self.global_rank)).tolist() == [0, 1]

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.05)

def fitted(epochs, checkpoint):
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddl", max_epochs=epochs, logger=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0, accumulate_grad_batches=2,
        callbacks=[ModelCheckpoint("checkpoints", monitor="loss", save_last=True), EarlyStopping("loss")],
    )
    trainer.fit(Model(), data, data, ckpt_path=checkpoint)
    assert trainer.current_epoch == epochs and trainer.callback_metrics["highest"] == 1
    return trainer

lightning.seed_everything(1)
x = torch.randn(101, 4)  # uneven
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
before = fitted(3, None).callback_metrics["loss"]
trainer = fitted(5, "checkpoints/last.ckpt")
assert trainer.callback_metrics["loss"] < before
own = torch.cat([p.detach().ravel() for p in trainer.model.parameters()])
everybody = [torch.zeros_like(own) for _ in range(2)]
dist.all_gather(everybody, own)
assert torch.equal(*everybody)
assert trainer.strategy.broadcast(trainer.global_rank, src=1) == 1
"""


def test_validation_checkpoints_and_going_on(tmp_path: Path) -> None:
    require("lightning")
    program = tmp_path / "program.py"
    program.write_text(GOES_ON)
    launch("ddlrun", [str(program)], tmp_path)


KILLED = """
import os
import signal
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel
import ddl_torch.lightning

class Model(BoringModel):
    def training_step(self, batch, number):
        if number == 2 and self.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, number)

trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddl", max_steps=5, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model())
"""


@pytest.mark.faults
def test_a_rank_is_killed(tmp_path: Path) -> None:
    """The other rank says who, in Lightning's error, and so does ddlrun."""
    require("lightning")
    named_when_killed(KILLED, tmp_path)


def fabric_on_uneven_hosts() -> List[Any]:
    import torch

    lightning = pytest.importorskip("lightning", reason="'make test' installs it")
    import ddl_torch.lightning

    fabric = lightning.Fabric(accelerator="cpu", strategy="ddl")
    fabric.launch()
    torch.manual_seed(fabric.global_rank)
    model = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(torch.arange(9.0).view(9, 1), batch_size=9))
    (own,) = loader
    fabric.backward(model(torch.full((1, 3), float(fabric.global_rank))).sum())
    optimizer.step()
    assert isinstance(fabric.strategy, ddl_torch.lightning.DDLFabricStrategy)
    weights = [w.tolist() for w in model.parameters()]
    torch.distributed.destroy_process_group()
    return [fabric.world_size, fabric.local_rank, fabric.node_rank, sorted(own.ravel().tolist()), weights]


def test_fabric_on_hosts_with_different_numbers_of_ranks() -> None:
    require("lightning")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def places(rank: int) -> Dict[str, str]:
        numbers = {"LOCAL_RANK": [0, 1, 0][rank], "LOCAL_SIZE": [2, 2, 1][rank], "CROSS_RANK": rank // 2}
        own = {f"DDL_{name}": str(number) for name, number in numbers.items()}
        torchs = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return {**own, **torchs, "DDL_CROSS_SIZE": "2", "DDL_HOST_ID": "aab"[rank]}

    results = run(3, fabric_on_uneven_hosts, env_of=places, initialise=False)
    assert [result[:3] for result in results] == [[3, 0, 0], [3, 1, 0], [3, 0, 1]]
    assert sorted(sum((result[3] for result in results), [])) == list(range(9))  # each sample on one rank
    assert results[0][4] == results[1][4] == results[2][4]
