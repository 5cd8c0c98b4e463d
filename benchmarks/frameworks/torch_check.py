"""What ``DistributedOptimizer(check=…)`` costs: ``ddlrun -np 2 python -m benchmarks.frameworks.torch_check``.

One model trained in turns by two optimizers, one that checks no step and one that checks each, on the same ranks. What
counts is the slowest rank's time; printed is the median step of each kind, and what a checked gradient costs.
"""

from __future__ import annotations

import statistics
import time
from typing import Dict, List

import torch

import ddl_torch as ddl

STEPS = 15
BATCH = 64


def network(width: int) -> torch.nn.Sequential:
    """Return eight layers of ``width`` squared parameters each."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(8)]
    return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))


def step_seconds(width: int) -> Dict[int, float]:
    """Return the seconds of a step by ``check``."""
    seconds: Dict[int, List[float]] = {0: [], 1: []}
    x = torch.randn(BATCH, width)
    trained = []
    for check in seconds:
        model = network(width)
        plain = torch.optim.SGD(model.parameters(), lr=1e-3)
        trained.append((check, model, ddl.DistributedOptimizer(plain, model.named_parameters(), check=check)))
    for number in range(STEPS + 1):
        for check, model, optimizer in trained:
            ddl.barrier()
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            took = ddl.allreduce(torch.tensor([time.perf_counter() - begin], dtype=torch.float64), op=ddl.Max)
            if number > 0:  # the first step lays out and connects
                seconds[check].append(took.item())
    return {check: statistics.median(rounds) for check, rounds in seconds.items()}


def main() -> None:
    """Print a line for each size of model on rank 0."""
    torch.set_num_threads(1)
    ddl.init()
    for width in (128, 512, 1024, 2048):
        seconds = step_seconds(width)
        numbers = 8 * (width * width + width)
        extra = seconds[1] - seconds[0]
        if ddl.rank() == 0:
            print(
                f"{numbers / 1e6:6.1f} M parameters: {1e3 * seconds[0]:7.1f} ms a step, {1e3 * seconds[1]:7.1f} ms if "
                f"checked: {1e9 * extra / numbers:5.1f} ns a parameter",
                flush=True,
            )
    ddl.shutdown()


if __name__ == "__main__":
    main()
