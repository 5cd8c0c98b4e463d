"""A training to which nothing happens, with all that makes it elastic or without: ``plain|elastic FOLDER FIRST``.

Two such jobs run at once and train in turn, a block of steps each, while the other one sleeps: so both have the same
machine. In FOLDER each has a pipe, by which the other one wakes it; FIRST is the one that begins. Rank 0 prints a JSON
object: the seconds of each step, by block, and the bytes of gradients. Started by idle.py.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Iterator, List, Tuple

import torch

import ddl_torch as ddl

_WIDTH, _LAYERS, _BATCH = 1024, 6, 256
_BLOCKS, _STEPS = 16, 6  # steps of a block, besides the first one, which is not counted
_ROWS = 4096  # of data, which are used again and again
_TURN = b"!"
_PATIENCE = 120.0  # seconds for a block of the other job, and for its start

Setting = Tuple[Iterator[List[torch.Tensor]], torch.nn.Module, torch.optim.Optimizer]


def setting(elastic: bool) -> Setting:
    """Return the batches of a training, as numbers of samples, its network and its optimizer."""
    torch.manual_seed(1)
    layers = [layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer = ddl.DistributedOptimizer(plain, model.named_parameters())
    numbers = torch.utils.data.TensorDataset(torch.arange(_BLOCKS * (1 + _STEPS) * _BATCH * ddl.size()))
    if not elastic:
        sampler = ddl.ShardedSampler(numbers)
        return iter(torch.utils.data.DataLoader(numbers, _BATCH, sampler=sampler)), model, optimizer
    batches = ddl.elastic.ElasticBatches(numbers, _BATCH)
    training = ddl.elastic.Training(model, optimizer, batches)
    return training.steps(torch.utils.data.DataLoader(numbers, batch_sampler=batches)), model, optimizer


class Turns:
    """Whose turn it is. Rank 0 of each job waits at its own pipe, and writes to that of the other."""

    def __init__(self, folder: Path, own: str, first: str) -> None:
        other = "plain" if own == "elastic" else "elastic"
        # To open a pipe for both ways waits for nobody.
        self._own, self._other = (os.open(folder / name, os.O_RDWR) for name in (own, other))
        self._done = 0  # blocks of this job
        if own != first:
            os.write(self._other, _TURN)

    def wait(self) -> None:
        """Wait until the other job has done its block."""
        if not select.select([self._own], [], [], _PATIENCE)[0]:
            raise TimeoutError(f"the other job gave no turn within {_PATIENCE:g} s, after {self._done} blocks")
        os.read(self._own, len(_TURN))

    def end(self) -> None:
        """A block is done."""
        self._done += 1
        os.write(self._other, _TURN)


def main() -> None:
    name, folder, first = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    ddl.init()
    torch.set_num_threads(1)
    batches, model, optimizer = setting(name == "elastic")
    turns = Turns(folder, name, first) if ddl.rank() == 0 else None
    data = torch.randn(_ROWS, _WIDTH)
    blocks: List[List[float]] = []
    before = 0.0
    for number, (indices,) in enumerate(batches):
        if number % (1 + _STEPS) == 0:
            if turns is not None:
                turns.wait()
            ddl.barrier()
            blocks.append([])
        optimizer.zero_grad()
        model(data[indices % _ROWS]).square().mean().backward()
        optimizer.step()
        now = time.perf_counter()
        if number % (1 + _STEPS) > 0:
            blocks[-1].append(now - before)
        before = now
        if number % (1 + _STEPS) == _STEPS:
            ddl.barrier()
            if turns is not None:
                turns.end()
    if turns is not None:
        count = sum(parameter.numel() for parameter in model.parameters())
        print(json.dumps({"blocks": blocks, "bytes": 4 * count}), flush=True)


if __name__ == "__main__":
    main()
