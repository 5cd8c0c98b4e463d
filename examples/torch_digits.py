"""Trains a small convolutional network on the UCI handwritten digits, on one rank or many.

    python examples/torch_digits.py
    ddlrun -np 2 examples/torch_digits.py

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Lines that a script for one
machine would not have are marked (DDL). All ranks together do the same work whatever their number: the batch is split
among them, so N ranks do what one process does with an N times larger batch, at a learning rate that grows with it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Iterator, Tuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

import ddl_torch as ddl

TEST_SHARE = 5  # every fifth digit is kept for the test


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits with DDL.")
    parser.add_argument("--epochs", type=positive, default=20, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=positive, default=32, help="digits per rank and step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.08, help="learning rate for one rank (%(default)s)")
    parser.add_argument("--warm-up", type=float, default=2.0, help="epochs until the full learning rate (%(default)s)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, order and distortions (%(default)s)")
    parser.add_argument("--compression", default="none", help="of gradients: none, bf16, int8, powersgd, auto")  # (DDL)
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser.parse_args()


def digits() -> Tuple[TensorDataset, TensorDataset]:
    """Return training and test digits; which are which does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16.0).astype(np.float32)).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    test = torch.arange(len(x)) % TEST_SHARE == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def network(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(width, 2 * width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(2 * width, 4 * width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Dropout(0.25),
        torch.nn.Linear(16 * width, 4 * width),
        torch.nn.ReLU(),
        torch.nn.Linear(4 * width, 10),
    )


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Return the images, each moved by up to one pixel: there are few of them, so they are varied."""
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    rows, columns = (torch.randint(0, 3, (2, len(x), 1)) + torch.arange(8)).unbind()
    return padded[torch.arange(len(x)).view(-1, 1, 1), 0, rows.unsqueeze(2), columns.unsqueeze(1)].unsqueeze(1)


def batches(loader: DataLoader, epoch: int, epochs: int) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    loader.sampler.set_epoch(epoch)  # another order every time, the same on all ranks
    hidden = True if ddl.rank() else None  # (DDL) one rank shows progress; None: only on a terminal
    yield from tqdm(loader, desc=f"epoch {epoch + 1}/{epochs}", disable=hidden, leave=False)


def accuracy(model: torch.nn.Module, test: TensorDataset) -> float:
    """Return the share of test digits that are recognised; every rank looks at its part of them."""
    model.eval()
    x, y = test[ddl.rank() :: ddl.size()]
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    model.train()
    return ddl.allreduce(right, op=ddl.Sum).item() / len(test)  # (DDL)


def main() -> None:
    options = arguments()
    ddl.init()  # (DDL)
    torch.manual_seed(options.seed)
    train, test = digits()
    sampler = DistributedSampler(train, ddl.size(), ddl.rank(), seed=options.seed)  # (DDL) each rank its own part
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)

    model = network(options.width)
    ddl.broadcast_parameters(model.state_dict())  # (DDL)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr * ddl.size(), momentum=0.9, weight_decay=1e-4)
    compression = options.compression  # (DDL)
    optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)  # (DDL)
    steps, warm_up = options.epochs * len(loader), max(1, round(options.warm_up * len(loader)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 1.0) * max(1.0 - step / steps, 0.01)
    )
    torch.manual_seed(options.seed + ddl.rank())  # dropout differs from here on

    start, seen = time.perf_counter(), 0
    for epoch in range(options.epochs):
        total = torch.zeros(())
        for x, y in batches(loader, epoch, options.epochs):
            optimizer.zero_grad()
            loss = cross_entropy(model(shifted(x)), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach() / len(loader)
            seen += len(x) * ddl.size()
        mean = ddl.allreduce(total).item()  # (DDL)
        if ddl.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{options.epochs}: training loss {mean:.4f}", flush=True)
    seconds = time.perf_counter() - start

    share = accuracy(model, test)
    waiting = ddl.allreduce(torch.tensor(optimizer.statistics()["seconds_waiting"])).item() / seconds
    result = {
        "ranks": ddl.size(),
        "threads": torch.get_num_threads(),
        "accuracy": share,
        "images_per_s": seen / seconds,
        "waiting_share": waiting,
        "seconds": seconds,
    }
    if ddl.rank() == 0:
        print(f"test accuracy {share:.2%}, {seen / seconds:.0f} images/s, {waiting:.1%} of the time waiting for others")
        if options.json:
            Path(options.json).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
