"""Trains a network on the handwritten digits so that any number of ranks takes the very steps of one process.

Every batch of 64 is shared out; averaging the ranks' gradients gives that of the whole batch, up to rounding. Prints
the loss on all digits, the length of the weights' vector, and whether all ranks have the same bits.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch
from sklearn.datasets import load_digits

import ddl_torch as ddl

BATCH = 64


def main() -> None:
    ddl.init()
    torch.manual_seed(1 + ddl.rank())  # other weights on each rank, until they are broadcast
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy((images / 16.0).astype(np.float32)), torch.from_numpy(labels.astype(np.int64))
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 10))
    ddl.broadcast_parameters(model.state_dict())
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9))
    order = torch.from_numpy(np.random.default_rng(3).permutation(len(x)))
    for start in range(0, len(x) - BATCH, BATCH):
        own = order[start : start + BATCH][ddl.rank() :: ddl.size()]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[own]), y[own]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(x), y).item()
        flat = torch.cat([p.flatten() for p in model.parameters()])
    same = len(set(ddl.allgather_object(zlib.crc32(flat.numpy().tobytes())))) == 1
    if ddl.rank() == 0:
        print(f"RESULT {ddl.size()} {loss:.7f} {flat.norm().item():.7f} same={same}")


if __name__ == "__main__":
    main()
