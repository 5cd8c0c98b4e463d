"""What deterministic sums cost: ``ddlrun -np 4 python -m benchmarks.frameworks.deterministic``, also on several hosts.

All-reduces of float32 by two communicators of the same ranks in turns: one as DDL chooses, one deterministic. Their
results are compared before anything is timed. What counts is the slowest rank's time; printed are medians.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import List

import numpy as np

import ddl

SIZES = (8, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20)
SECONDS = 2.5  # per size, about
BLOCK = 2e-3  # seconds for which small calls are timed together


def check(comms: List[ddl.Communicator], x: np.ndarray) -> bool:
    """Return whether all ranks have sums that differ by no more than rounding."""
    values = np.random.default_rng(ddl.rank()).standard_normal(x.size).astype(np.float32)
    usual, other = (comm.allreduce(values, op=ddl.Sum) for comm in comms)
    return bool(ddl.allreduce(np.float32(np.allclose(usual, other, atol=1e-4)), op=ddl.Min) == 1)


def medians(comms: List[ddl.Communicator], x: np.ndarray) -> List[float]:
    """Return the seconds of an all-reduce by each communicator: medians of rounds in which each has its turn."""
    steps = [comm.prepare_allreduce(x) for comm in comms]
    for step in steps:
        step()  # plans and connects
    begin = time.perf_counter()
    steps[1]()
    once = float(ddl.allreduce(np.float64(time.perf_counter() - begin), op=ddl.Max))
    together = max(1, int(BLOCK / once))
    rounds = int(min(max(SECONDS / (once * together * len(steps)), 5), 300))
    times: List[List[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for seconds, step in zip(times, steps):
            step()
            begin = time.perf_counter()
            for _ in range(together):
                step()
            seconds.append((time.perf_counter() - begin) / together)
    slowest = ddl.allreduce(np.array(times), op=ddl.Max)
    return [statistics.median(row) for row in slowest.tolist()]


def main() -> int:
    """Print a line for each size on rank 0; return the exit status: 1 if a sum is wrong."""
    ddl.init()
    usual, fixed = ddl.split(0), ddl.split(0, deterministic=True)
    assert usual is not None and fixed is not None
    for nbytes in SIZES:
        x = ddl.empty(nbytes // 4, "float32")
        x[:] = 0
        if not check([usual, fixed], x):
            print(f"{nbytes} bytes: the two sums differ by more than rounding explains", file=sys.stderr)
            return 1
        before, after = medians([usual, fixed], x)
        if ddl.rank() == 0:
            row = f"{nbytes:9} bytes: default {1e6 * before:10.1f} us, deterministic {1e6 * after:10.1f} us"
            print(f"{row}, ratio {after / before:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
