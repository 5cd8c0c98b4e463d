"""One contestant of an all-reduce benchmark, on every rank of its own job: checks values, then times.

Started by allreduce.py through the contestant's own launcher. Rank 0 writes JSON: for every size the seconds of each
call. A wrong value ends the program with status 1. Buffers are rotated, so that a large one is never still in
the cache from the call before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

ROTATED = 64 << 20  #: bytes of buffers that are used in turn, at most
MOST_BUFFERS = 4


@dataclass
class Library:
    """What the one timing loop needs of a library. ``make(elements)``: its buffer, and a numpy view of it."""

    rank: int
    size: int
    make: Callable[[int], Tuple[Any, np.ndarray]]
    reduce: Callable[[Any], Any]
    finish: Callable[[], None]


def ddl_library(shared: bool) -> Library:
    import ddl

    ddl.init()

    def make(count: int) -> Tuple[Any, np.ndarray]:
        buffer = ddl.empty(count, np.float32) if shared else np.empty(count, np.float32)
        return buffer, buffer

    return Library(ddl.rank(), ddl.size(), make, lambda buffer: ddl.allreduce_(buffer, op=ddl.Sum), ddl.shutdown)


def mpi_library() -> Library:
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def make(count: int) -> Tuple[Any, np.ndarray]:
        buffer = np.empty(count, np.float32)
        return buffer, buffer

    return Library(world.rank, world.size, make, lambda buffer: world.Allreduce(MPI.IN_PLACE, buffer), world.Barrier)


def gloo_library() -> Library:
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["BENCH_PORT"])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=size)

    def make(count: int) -> Tuple[Any, np.ndarray]:
        tensor = torch.empty(count, dtype=torch.float32)
        return tensor, tensor.numpy()

    return Library(rank, size, make, dist.all_reduce, dist.destroy_process_group)


LIBRARIES: Dict[str, Callable[[], Library]] = {
    "ddl": lambda: ddl_library(shared=True),
    "ddl-private": lambda: ddl_library(shared=False),
    "mpi": mpi_library,
    "gloo": gloo_library,
}


def measure(nbytes: int, library: Library, seconds: float) -> List[float]:
    """Return the seconds of each call for buffers of ``nbytes``; all ranks make the same number of calls."""
    rank, size, reduce = library.rank, library.size, library.reduce
    count = max(1, nbytes // 4)
    buffers = [library.make(count) for _ in range(max(1, min(MOST_BUFFERS, ROTATED // nbytes)))]
    ramp = np.arange(count, dtype=np.float32) % 1024
    for buffer, view in buffers:
        view[:] = ramp + rank
        reduce(buffer)
        if not np.array_equal(view, ramp * size + size * (size - 1) // 2):
            print(f"wrong sum of {nbytes} bytes on rank {rank}", file=sys.stderr)
            sys.exit(1)
        view[:] = 0
    # The number of calls must be the same everywhere, so it follows from the size alone.
    calls = int(max(7, min(2000, seconds * 4e9 / (nbytes + 20_000))))
    for i in range(calls // 5 + 2):
        reduce(buffers[i % len(buffers)][0])
    times = []
    for i in range(calls):
        buffer = buffers[i % len(buffers)][0]
        start = time.perf_counter()
        reduce(buffer)
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=sorted(LIBRARIES))
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--output", required=True, type=Path, help="JSON file for the seconds of each call, by size")
    parser.add_argument("--seconds", type=float, default=0.3, help="about how long to time each size")
    arguments = parser.parse_args()
    library = LIBRARIES[arguments.library]()
    result = {}
    for text in arguments.sizes.split(","):
        result[text] = measure(int(text), library, arguments.seconds)
    if library.rank == 0:
        arguments.output.write_text(json.dumps(result))
    library.finish()


if __name__ == "__main__":
    main()
