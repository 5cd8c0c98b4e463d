"""A replica of torchft's kind, without torchft: it averages until another one dies, and says when it knows of that.

Arguments: the store's address with a prefix, this replica's number, and how many there are. Prints ``begun``, and at
the end the moment in monotonic seconds. Started by process_group.py.
"""

from __future__ import annotations

import datetime
import sys
import time

import torch
from torch.distributed import distributed_c10d as c10d

import ddl
from ddl_torch.torchft import ProcessGroupDDL

_ELEMENTS = 250_000


def main() -> None:
    place, number, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    group = ProcessGroupDDL(timeout=datetime.timedelta(seconds=100))
    group.configure(place, f"replica_{number}", number, size, 1, 0, 1, list(range(size)))
    gradients = torch.ones(_ELEMENTS)
    options = c10d.AllreduceOptions()  # a sum, and a work to wait for

    def allreduce() -> None:
        work = group.allreduce([gradients], options)
        assert work is not None
        work.wait()

    allreduce()
    print("begun", flush=True)
    try:
        while True:
            allreduce()
    except ddl.PeerLost:
        moment = time.monotonic()
    if not isinstance(group.errored(), ddl.PeerLost):
        raise ddl.InternalError(f"errored() says {group.errored()!r}")
    print(moment, flush=True)
    group.shutdown()


if __name__ == "__main__":
    main()
