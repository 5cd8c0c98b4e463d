"""Trains a small network on handwritten digits, and goes on when its ranks are killed or others join.

    ddlrun -np 4 --min-np 1 examples/torch_elastic.py

Kill any of its processes meanwhile (it prints their numbers): the others repeat the interrupted step with the gradients
that they have, and go on. Where a slot is free, ddlrun starts another process, which joins with the weights of the
others. At the end the program proves that in every epoch each digit was used exactly once. Lines that
a script for one machine would not have are marked (DDL).
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import ddl_torch as ddl
from ddl.adapter.sample_cursor import check_committed_once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=10, help="passes over the digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="digits per rank and step (%(default)s)")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds added to each step, to watch it (%(default)s)"
    )
    options = parser.parse_args()
    ddl.init()  # (DDL)
    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy((images / 16.0).astype(np.float32))
    dataset = TensorDataset(x, torch.from_numpy(labels.astype(np.int64)))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters())  # (DDL)
    batches = ddl.elastic.ElasticBatches(dataset, options.batch_size)  # (DDL)
    loader = DataLoader(dataset, batch_sampler=batches)
    training = ddl.elastic.Training(
        model, optimizer, batches
    )  # (DDL) a process that joins has the weights from here on
    print(f"process {os.getpid()} is rank {ddl.rank()} of {ddl.size()}", flush=True)
    ranks = ddl.size()
    for epoch in training.epochs(options.epochs):  # (DDL)
        for x, y in training.steps(loader):  # (DDL)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            time.sleep(options.pause)
            if ddl.size() != ranks:
                ranks = ddl.size()
                print(
                    f"process {os.getpid()} is rank {ddl.rank()} of {ranks} since step {training.finished}", flush=True
                )
        if ddl.rank() == 0:
            print(f"epoch {epoch}: {ranks} ranks, loss {loss.item():.3f}", flush=True)
    if ddl.rank() == 0:
        first = training.log[0]
        if first.step == 0:  # this process was there from the beginning
            check_committed_once(len(dataset), training.log)
            print(f"{len(training.log)} steps; each of {len(dataset)} digits was used exactly once in every epoch")
        correct = (model(dataset.tensors[0]).argmax(dim=1) == dataset.tensors[1]).float().mean().item()
        print(f"{100 * correct:.1f} % of the digits are recognised, after {training.changes} changes of the ranks")


if __name__ == "__main__":
    main()
