"""Trains on the digits by Hugging Face's Accelerate, whose ranks talk by DDL.

    ddlrun -np 2 examples/torch_accelerate.py

(pip install accelerate.) The lines marked (DDL) are those that are added to a script that one starts by torchrun.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch_digits import digits, network

import ddl_torch  # noqa: F401 (DDL) makes the backend known

EPOCHS = 5


def main() -> None:
    dist.init_process_group("ddl")  # (DDL) before the Accelerator, which takes the group that is there
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    train, test = digits()
    model = network(width=16)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=0.003),
        DataLoader(train, batch_size=32, shuffle=True),
        DataLoader(test, batch_size=180),
    )
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step()

    model.eval()
    with torch.no_grad():
        right = [accelerator.gather_for_metrics(model(x).argmax(1) == y) for x, y in test_loader]
    accelerator.print(f"test accuracy {torch.cat(right).float().mean():.2%}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
