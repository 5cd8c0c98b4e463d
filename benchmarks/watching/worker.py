"""What each rank runs: ``python -m benchmarks.watching.worker SECONDS``.

Rank 0 prints as JSON: ``call`` and ``prepared``, the seconds of an all-reduce of 8 bytes, in its two forms, and
``step``, those of a training step: some milliseconds of computation, and an all-reduce of 4 MiB. Medians of batches.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Callable, Dict, List

import numpy as np

import ddl
from ddl.adapter.step_record import note_step

_BATCH = 2000  # calls of 8 bytes
_COMPUTE = 0.005  # seconds of a step


def main() -> None:
    seconds = float(sys.argv[1])
    ddl.init()
    small, large = np.ones(1), np.ones(1 << 20, np.float32)
    matrix = np.random.default_rng(1).random((100, 100))
    prepared = ddl.world().prepare_allreduce(ddl.empty(1, np.float64))

    def calls(function: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(_BATCH):
            function()
        return (time.perf_counter() - begin) / _BATCH

    def step() -> float:
        begin = time.perf_counter()
        while time.perf_counter() < begin + _COMPUTE:
            matrix @ matrix
        ddl.allreduce_(large)
        note_step()
        return time.perf_counter() - begin

    batches: Dict[str, Callable[[], float]] = {
        "call": lambda: calls(lambda: ddl.allreduce_(small)),
        "prepared": lambda: calls(prepared),
        "step": step,
    }
    took: Dict[str, List[float]] = {name: [] for name in batches}
    for name, batch in batches.items():
        going, end = np.ones(1), time.monotonic() + seconds / len(batches)
        while going[0]:
            took[name].append(batch())
            going[0] = time.monotonic() < end
            ddl.broadcast_(going, 0)
    if ddl.rank() == 0:
        print(json.dumps({name: statistics.median(values) for name, values in took.items()}), flush=True)


if __name__ == "__main__":
    main()
