"""Trains a small network on two actors of Ray, as a script for ``horovod.ray`` does.

    python examples/ray_executor.py

The lines marked (DDL) are those that differ from a script for Horovod.
"""

from __future__ import annotations

import argparse
import os
from typing import List

import ray

from ddl.ray import RayExecutor  # (DDL)

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def train(steps: int) -> List[float]:
    """Fit a line, and return the loss of each step."""
    import torch

    import ddl_torch as hvd  # (DDL)

    hvd.init()
    torch.manual_seed(1)
    x = torch.randn(64, 4)[hvd.rank() :: hvd.size()]
    y = x.sum(1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(hvd.allreduce(loss.detach())))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for actors to start")
    options = parser.parse_args()

    ray.init(num_cpus=options.workers, include_dashboard=False)
    settings = RayExecutor.create_settings(timeout_s=30, placement_group_timeout_s=options.timeout)
    executor = RayExecutor(settings, num_workers=options.workers)
    executor.start()
    losses = executor.run(train, kwargs={"steps": options.steps})
    executor.shutdown()
    print(f"loss {losses[0][0]:.3f} -> {losses[0][-1]:.3f}, the same on all ranks: {losses[0] == losses[-1]}")


if __name__ == "__main__":
    main()
