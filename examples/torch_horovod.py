"""A script for Horovod, on DDL: only its import line differs.

    ddlrun -np 2 examples/torch_horovod.py

With ``import horovod.torch as hvd`` instead, horovodrun starts it; docs/from_horovod.md says more.
"""

from __future__ import annotations

from typing import Tuple

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import ddl_torch as hvd

EPOCHS = 5


def digits() -> Tuple[TensorDataset, TensorDataset]:
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    test = torch.arange(len(x)) % 5 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def main() -> None:
    hvd.init()
    torch.manual_seed(hvd.rank())
    train, test = digits()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, batch_size=32, sampler=sampler)

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        mean = hvd.allreduce(total).item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{EPOCHS}: training loss {mean:.4f}")

    x, y = test[hvd.rank() :: hvd.size()]
    right = (model(x).argmax(1) == y).sum()
    accuracy = hvd.allreduce(right, op=hvd.Sum).item() / len(test)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
