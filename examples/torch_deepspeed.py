"""Trains on the digits by DeepSpeed, with the optimizer's state split over the ranks (ZeRO-1), which talk by DDL.

    ddlrun -np 2 examples/torch_deepspeed.py

(pip install deepspeed. Its first start on a machine compiles something, which takes a minute.) The lines marked (DDL)
are those that differ from a script for gloo.
"""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch_digits import digits, network

import ddl_torch  # noqa: F401 (DDL) makes the backend known

EPOCHS = 5
CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "Adam", "params": {"lr": 0.003, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "zero_force_ds_cpu_optimizer": False,
}


def main() -> None:
    deepspeed.init_distributed(dist_backend="ddl")  # (DDL)
    torch.manual_seed(1)
    train, test = digits()
    model = network(width=16)
    engine, _, loader, _ = deepspeed.initialize(model=model, config=CONFIG, training_data=train)
    for epoch in range(EPOCHS):
        loader.data_sampler.set_epoch(epoch)
        for x, y in loader:
            loss = cross_entropy(engine(x), y)
            engine.backward(loss)
            engine.step()

    engine.eval()
    x, y = test.tensors
    with torch.no_grad():
        right = (engine(x).argmax(1) == y).float().mean()
    if dist.get_rank() == 0:
        print(f"test accuracy {right:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
