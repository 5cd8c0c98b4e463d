"""Trains on the digits by DistributedDataParallel.

    ddlrun -np 2 examples/torch_ddp.py
    torchrun --nproc-per-node 2 examples/torch_ddp.py

The lines marked (DDL) are those that differ from a script for gloo.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch_digits import digits, network

import ddl_torch  # noqa: F401 (DDL) makes the backend known

EPOCHS = 5


def main() -> None:
    dist.init_process_group("ddl")  # (DDL)
    torch.manual_seed(1)
    train, test = digits()
    sampler = DistributedSampler(train, seed=1)
    loader = DataLoader(train, batch_size=32, sampler=sampler)
    model = DistributedDataParallel(network(width=16))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    model.eval()
    x, y = test.tensors
    with torch.no_grad():
        right = (model(x).argmax(1) == y).float().mean()
    if dist.get_rank() == 0:
        print(f"test accuracy {right:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
