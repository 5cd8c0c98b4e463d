"""One rank of cut.py: all-reduces the same numbers again and again, and says when the one that will be cut begins.

``python -m benchmarks.targets.cut_rank OUTPUT BYTES``. Random float32, so that another order of additions would
show in the bits. The clock is the machine's, which all hosts of a lab cluster share.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Tuple

import numpy as np

import ddl
from benchmarks.collectives.libraries import layout_of

_BEFORE = 5  #: operations before the cut


def main() -> None:
    ddl.init()
    rank = ddl.rank()
    source = np.random.default_rng(rank).standard_normal(int(sys.argv[2]) // 4, np.float32)
    array = ddl.empty(source.size, np.float32)

    def once(announce: str = "") -> Tuple[float, float, str]:
        array[:] = source
        ddl.barrier()
        if announce and rank == 0:
            print(announce, flush=True)
        begin = time.monotonic()
        ddl.allreduce_(array, op=ddl.Sum)
        return begin, time.monotonic(), hashlib.sha256(array.data).hexdigest()

    once()  # connections are made
    before = [once() for _ in range(_BEFORE)]
    whole = [end - begin for begin, end, _ in before]
    *cut, bits = once(str(sorted(whole)[_BEFORE // 2]))
    seen = {
        "whole": whole,
        "cut": cut,
        "bits": [bits, *(result[2] for result in before)],
        "layout": layout_of(),
    }
    Path(sys.argv[1], f"rank.{rank}.json").write_text(json.dumps(seen))
    ddl.shutdown()


if __name__ == "__main__":
    main()
