"""What each rank of a real job runs: ``python -m benchmarks.stragglers.worker KIND SECONDS LATE``.

It computes for some milliseconds, then reduces, again and again. The last rank sleeps LATE seconds before each
operation. Rank 0 prints, as JSON, who was called late at any moment, and by how many seconds at the last.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Dict

import numpy as np

import ddl

COMPUTE = 0.01  #: seconds of a step
_BYTES = 1 << 18


def main() -> None:
    kind, seconds, late = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    ddl.init()
    array = np.ones(_BYTES // 4, np.float32)
    small = np.random.default_rng(ddl.rank()).random((120, 120))
    called: Dict[int, float] = {}
    going, step, end = np.ones(1), 0, time.monotonic() + seconds
    while going[0]:
        begin = time.monotonic()
        while time.monotonic() < begin + COMPUTE:
            small @ small
        if kind == "pause" and step == 100 and ddl.rank() == 1:
            time.sleep(1.0)
        if kind == "slow start" and step == 0 and ddl.rank() == 1:
            time.sleep(3.0)
        if late and ddl.rank() == ddl.size() - 1:
            time.sleep(late)
        ddl.allreduce_(array)
        going[0] = time.monotonic() < end
        step += 1
        if step % 20 == 0:
            ddl.broadcast_(going, 0)
            called.update(ddl.metrics().late)
        else:
            going[0] = 1.0
    if ddl.rank() == 0:
        print(json.dumps({"late": {str(rank): value for rank, value in called.items()}, "steps": step}), flush=True)


if __name__ == "__main__":
    main()
