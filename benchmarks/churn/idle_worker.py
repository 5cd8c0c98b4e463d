"""Two trainings in an elastic job in which nothing happens, one with ``elastic.Training`` and one without, in turn.

Prints a JSON object: seconds of each step of both, and the bytes of gradients. Started by idle.py.
"""

from __future__ import annotations

import json
import time
from typing import Dict, List, Tuple

import torch

import ddl_torch as ddl

_WIDTH, _LAYERS, _BATCH = 1024, 6, 256
_STEPS = 100
_WARM_UP = 5


def network() -> Tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a network and its optimizer."""
    torch.manual_seed(1)
    layers = [layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)
    return model, ddl.DistributedOptimizer(plain, model.named_parameters())


def main() -> None:
    ddl.init()
    torch.set_num_threads(1)
    trainings = {"plain": network(), "elastic": network()}
    ddl.elastic.Training(*trainings["elastic"])
    seconds: Dict[str, List[float]] = {name: [] for name in trainings}
    x = torch.randn(_BATCH, _WIDTH)
    for turn in range(_WARM_UP + _STEPS):
        for name, (model, optimizer) in trainings.items():
            ddl.barrier()
            began = time.perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if turn >= _WARM_UP:
                seconds[name].append(time.perf_counter() - began)
    if ddl.rank() == 0:
        count = sum(parameter.numel() for parameter in trainings["plain"][0].parameters())
        print(json.dumps({**seconds, "bytes": 4 * count}), flush=True)


if __name__ == "__main__":
    main()
