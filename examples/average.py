"""Averages an array over all ranks, and says how long that takes. It needs numpy only: ``ddlrun -np 2 average.py``."""

from __future__ import annotations

import time

import numpy as np

import ddl


def main() -> None:
    ddl.init()
    array = ddl.empty(8 << 20, np.float32)  # 32 MiB in memory that the ranks of this host share
    array[:] = ddl.rank()
    ddl.allreduce_(array)
    print(f"the average of the ranks' numbers is {array[0]:g}", flush=True)

    times = []
    for _ in range(20):
        begin = time.perf_counter()
        ddl.allreduce_(array)
        times.append(time.perf_counter() - begin)
    if ddl.rank() == 0:
        print(
            f"{array.nbytes >> 20} MiB of each of {ddl.size()} ranks are averaged in {sorted(times)[10] * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main()
