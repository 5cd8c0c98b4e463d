"""The training whose pictures the other scripts of this folder draw: one rank is late, for a while or always."""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch

import ddl_torch


def main() -> None:
    """Train as the arguments say. If there is a file ``stop``, the late rank stops itself."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--sleep", type=float, required=True, help="seconds of each step")
    parser.add_argument("--late", type=int, required=True, help="the rank that is late")
    parser.add_argument("--late-sleep", type=float, required=True, help="its seconds of each step")
    parser.add_argument("--late-from", type=int, default=0, help="the step in which that begins")
    parser.add_argument("--late-until", type=int, default=10**9, help="the step in which that has ended")
    parser.add_argument("--width", type=int, default=256, help="of each of six layers")
    parser.add_argument("--log", help="where each rank writes for TensorBoard")
    options = parser.parse_args()
    ddl_torch.init()
    torch.set_num_threads(1)
    rank, width = ddl_torch.rank(), options.width
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6)))
    optimizer = ddl_torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    logger = None
    if options.log:
        from torch.utils.tensorboard import SummaryWriter

        logger = ddl_torch.RateLogger(SummaryWriter(f"{options.log}/rank{rank}"), every=10)
    for step in range(options.steps):
        is_late = rank == options.late and options.late_from <= step < options.late_until
        time.sleep(options.late_sleep if is_late else options.sleep)
        if rank == options.late and os.path.exists("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        optimizer.zero_grad()
        model(torch.ones(8, width)).sum().backward()
        optimizer.step()
        if logger is not None:
            logger.step()


if __name__ == "__main__":
    main()
