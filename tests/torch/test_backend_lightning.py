"""Lightning trains on the backend "ddl" to what it trains to on gloo, and its metrics are those of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from process_groups import require, trained_alike

pytest.importorskip("torch")
pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = """
import sys
import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset
import ddl_torch

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
    accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend=sys.argv[1]), max_epochs=3, logger=False,
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
