"""What each of two ranks runs: ``python -m benchmarks.waking.worker TIMES PAUSE OUTPUT``.

Rank 1 waits in a barrier until it sleeps; rank 0 comes PAUSE seconds later. Each writes when (on the host's monotonic
clock) rank 0 called and rank 1 went on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import ddl


def main() -> None:
    times, pause, output = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    ddl.init()
    late = ddl.rank() == 0
    moments = []
    for _ in range(times):
        ddl.barrier()
        if late:
            time.sleep(pause)
        called = time.perf_counter()
        ddl.barrier()
        moments.append(called if late else time.perf_counter())
    (output / f"rank.{ddl.rank()}.json").write_text(json.dumps({"moments": moments}))


if __name__ == "__main__":
    main()
