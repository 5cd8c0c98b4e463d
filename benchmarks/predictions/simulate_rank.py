"""One rank of ``simulate_check.py``: times single all-reduces, and writes when each began and ended on this rank.

Before each call the wire is idle for some milliseconds, so that token buckets are full, and all ranks meet.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import ddl

IDLE = 0.02  # seconds: 20 times what a bucket needs to fill


def main() -> None:
    sizes = [int(word) for word in sys.argv[2].split(",")]
    rounds = int(sys.argv[3])
    ddl.init()
    times = {}
    for nbytes in sizes:
        array = ddl.empty(nbytes // 4, "float32")
        array[:] = 0
        ddl.allreduce_(array)
        begins, ends = [], []
        for _ in range(rounds):
            time.sleep(IDLE)
            ddl.barrier()
            begins.append(time.monotonic())
            ddl.allreduce_(array)
            ends.append(time.monotonic())
        times[nbytes] = [begins, ends]
    Path(sys.argv[1], f"rank.{ddl.rank()}.json").write_text(json.dumps(times))
    ddl.shutdown()


if __name__ == "__main__":
    main()
