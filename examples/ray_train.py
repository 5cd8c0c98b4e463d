"""Trains a small network with the ``TorchTrainer`` of Ray Train, on two workers.

    python examples/ray_train.py

The lines marked (DDL) are those that differ from a script for gloo.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any, Dict

import ray
import ray.train
import ray.train.torch

import ddl_torch.ray_train  # (DDL)

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def train(config: Dict[str, Any]) -> Dict[str, float]:
    """Fit a line; return the first loss and the last."""
    import torch

    torch.manual_seed(1)
    rank, size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    x = torch.randn(64, 4)[rank::size]
    y = x.sum(1, keepdim=True)
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(config["steps"]):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return {"first": losses[0], "last": losses[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    ray.init(num_cpus=options.workers, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"steps": options.steps},
            torch_config=ddl_torch.ray_train.TorchConfig(),  # (DDL)
            scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        losses = trainer.fit().return_value
    print(f"loss {losses['first']:.3f} -> {losses['last']:.3f}")


if __name__ == "__main__":
    main()
