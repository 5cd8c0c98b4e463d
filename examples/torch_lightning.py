"""Trains on the digits by Lightning (pip install lightning), whose ranks talk by DDL.

    ddlrun -np 2 examples/torch_lightning.py

The lines marked (DDL) are those that differ from a script with strategy="ddp".
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch_digits import digits, network

import ddl_torch.lightning  # noqa: F401 (DDL) makes the strategy known


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network(width=16)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return cross_entropy(self.network(x), y)

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main() -> None:
    lightning.seed_everything(1, verbose=False)
    train, test = digits()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddl",  # (DDL) knows by itself how many ranks there are
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Digits()
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=180))
    if trainer.is_global_zero:
        print(f"test accuracy {trainer.callback_metrics['accuracy']:.2%}")


if __name__ == "__main__":
    main()
