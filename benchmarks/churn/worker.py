"""A training whose ranks are killed by ``python -m benchmarks churn``: it notes the end of each step in a file.

Each line is a JSON object (notes.py). The training ends after the step whose number stands in the file ``NOTES.end``.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time

import torch

import ddl_torch as ddl
from ddl.adapter import generation

_COMPARED = 20  #: every so many steps, the note has a digest of the weights


def digest(model: torch.nn.Module) -> str:
    """Return what tells trained weights from one another, bit by bit."""
    whole = hashlib.sha256()
    for weights in model.parameters():
        if weights.requires_grad:
            whole.update(weights.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


def last_step(path: str) -> int:
    """Return after which step the training ends; a very large number while that is not known."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 1 << 60


def main() -> None:
    path, seconds = sys.argv[1], float(sys.argv[2])
    width, samples, frozen = map(int, sys.argv[3:6])
    ddl.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    model.register_parameter("frozen", torch.nn.Parameter(torch.ones(frozen // 4), requires_grad=False))
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    plain = torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
    optimizer = ddl.DistributedOptimizer(plain, model.named_parameters())
    batches = ddl.elastic.ElasticBatches(samples, 8)
    training = ddl.elastic.Training(model, optimizer, batches)
    data = torch.randn(samples, width)
    numbers = torch.utils.data.TensorDataset(torch.arange(samples))
    loader = torch.utils.data.DataLoader(numbers, batch_sampler=batches)
    notes = os.open(path, os.O_WRONLY | os.O_APPEND)

    def note(**what: object) -> None:
        os.write(notes, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), **what}).encode() + b"\n")

    last = 1 << 60
    for _ in training.epochs(last):
        for (indices,) in training.steps(loader):
            last = min(last, last_step(path + ".end"))
            if training.finished >= last:
                note(end=training.finished, digest=digest(model))
                return
            optimizer.zero_grad()
            time.sleep(seconds)  # what a larger model would compute
            model(data[indices]).square().mean().backward()
            optimizer.step()
            moment, step = time.monotonic(), training.finished
            gives = training.gives_state
            where = {"rank": ddl.rank(), "size": ddl.size(), "generation": generation.number()}
            records = [record.to_plain() for record in training.log]
            training.log.clear()  # else it would grow with each step
            weights = None if step % _COMPARED else digest(model)
            note(moment=moment, step=step, gives=gives, **where, records=records, digest=weights)


main()
