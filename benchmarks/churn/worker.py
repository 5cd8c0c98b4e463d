"""A training whose ranks are killed by ``python -m benchmarks churn``: it notes the end of each step in a file.

Each line is a JSON object (notes.py). The training ends after the step whose number stands in the file ``NOTES.end``.
While there is a file ``NOTES.hold``, a process that could train does not begin: it neither joins nor asks for anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from typing import Iterable, List, Tuple

import torch

import ddl_torch as ddl
from ddl.adapter import generation

BATCH = 8  #: samples of each rank in a step
_COMPARED = 20  # every so many steps, the note has a digest of the weights
_LOOK = 0.002  # seconds


def network(width: int, samples: int) -> Tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """Return a network, its optimizer, and the data of an epoch, the same in every process."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), torch.randn(samples, width)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return what tells tensors from others, bit by bit."""
    whole = hashlib.sha256()
    for tensor in tensors:
        whole.update(tensor.detach().contiguous().numpy().data)
    return whole.hexdigest()[:16]


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """Return all parameters, and what the optimizer keeps of those that it trains."""
    kept = optimizer.state_dict()["state"]
    values = [kept[number][name] for number in sorted(kept) for name in sorted(kept[number])]
    return [*model.parameters(), *(value for value in values if isinstance(value, torch.Tensor))]


def last_step(path: str) -> int:
    """Return after which step the training ends; a very large number while that is not known."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 1 << 60


def main() -> None:
    path, seconds = sys.argv[1], float(sys.argv[2])
    width, samples, frozen, deterministic = map(int, sys.argv[3:7])
    ddl.init()
    model, plain, data = network(width, samples)
    trained = list(model.parameters())
    # A process that joins does not have the others' values of these: it must get them.
    constant = torch.full((frozen // 4,), float(generation.is_member()))
    model.register_parameter("frozen", torch.nn.Parameter(constant, requires_grad=False))
    optimizer = ddl.DistributedOptimizer(plain, model.named_parameters(), deterministic=bool(deterministic))
    batches = ddl.elastic.ElasticBatches(samples, BATCH)
    numbers = torch.utils.data.TensorDataset(torch.arange(samples))
    loader = torch.utils.data.DataLoader(numbers, batch_sampler=batches)
    notes = os.open(path, os.O_WRONLY | os.O_APPEND)

    def note(**what: object) -> None:
        os.write(notes, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), **what}).encode() + b"\n")

    note(ready=time.monotonic())
    while os.path.exists(path + ".hold"):
        time.sleep(_LOOK)
    training = ddl.elastic.Training(model, optimizer, batches)
    last = 1 << 60
    for _ in training.epochs(last):
        for (indices,) in training.steps(loader):
            last = min(last, last_step(path + ".end"))
            if training.finished >= last:
                note(end=training.finished, digest=digest(state_of(model, optimizer)))
                return
            optimizer.zero_grad()
            time.sleep(seconds)  # what a larger model would compute
            model(data[indices]).square().mean().backward()
            optimizer.step()
            moment, step = time.monotonic(), training.finished
            state = {"gives": training.gives_state, "followed": training.bytes_followed}
            where = {"rank": ddl.rank(), "size": ddl.size(), "generation": generation.number()}
            records = [record.to_plain() for record in training.log]
            training.log.clear()  # else it would grow with each step
            weights = None if step % _COMPARED else digest(trained)
            note(moment=moment, step=step, **state, **where, records=records, digest=weights)


if __name__ == "__main__":
    main()
