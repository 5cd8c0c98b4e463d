"""What each rank runs to measure ``--rebalance``: ``python -m benchmarks.stragglers.rebalanced BYTES SECONDS ROUNDS``.

All ranks share memory. The last one sleeps SECONDS before each all-reduce. Both plans take turns within the job: all
ranks do the same work, or the others do the work of the late one. The late rank prints, as JSON, how long its calls
took, in seconds: that is what is left to do when it comes.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Dict, List, Tuple

import numpy as np

import ddl

_CALLS = 5  # by one plan, before it is the other's turn


def main() -> None:
    size, late, rounds = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    ddl.init()
    last = ddl.size() - 1
    array = ddl.empty(size // 4, np.float32)  # in memory that the others see, as gradients of the adapters are
    array[...] = 1
    plans: Dict[str, Tuple[int, ...]] = {"alike": (), "rebalanced": (last,)}
    took: Dict[str, List[float]] = {name: [] for name in plans}
    for round_ in range(rounds + 1):
        for name, ranks in plans.items():
            ddl.barrier()
            ddl.world()._group._use_late(ranks)  # what the others and the late rank agree on, here at once
            for _ in range(_CALLS):
                ddl.barrier()
                if ddl.rank() == last:
                    time.sleep(late)
                begin = time.perf_counter()
                ddl.allreduce_(array)
                if round_:  # the first one warms up
                    took[name].append(time.perf_counter() - begin)
    assert (array == 1).all()
    if ddl.rank() == last:
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
