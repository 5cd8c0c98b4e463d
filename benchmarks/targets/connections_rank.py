"""One rank of connections.py: counts its TCP connections after all-reduces of several sizes.

``python -m benchmarks.targets.connections_rank OUTPUT BYTES …``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Set

import numpy as np

import ddl
from benchmarks.collectives.libraries import layout_of
from ddl.net.address import parse_address

__all__ = ["data_connections"]

_ESTABLISHED = "01"
_QUIET = 0.3  #: seconds without a change, after which no more connections are expected
_LOOKS = 100


def data_connections() -> int:
    """Return how many established TCP connections this process has, but for those to the job's store."""
    store = parse_address(os.environ["DDL_STORE"])[1]
    own_sockets: Set[str] = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            own_sockets.add(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:
            continue  # the directory's own
    count = 0
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, state, *rest = line.split()
        if state == _ESTABLISHED and int(remote.rpartition(":")[2], 16) != store:
            count += f"socket:[{rest[5]}]" in own_sockets
    return count


def settled() -> int:
    """Return their number once it has not changed for a while on any rank; collective."""
    known = -1
    for _ in range(_LOOKS):
        seen = data_connections()
        if ddl.allreduce(np.array([seen != known], np.float32), op=ddl.Max)[0] == 0:
            return seen
        known = seen
        time.sleep(_QUIET)
    raise RuntimeError(f"rank {ddl.rank()}: {known} connections, and still not as many as a moment before")


def main() -> None:
    ddl.init()
    for nbytes in map(int, sys.argv[2:]):
        ddl.allreduce_(np.ones(nbytes // 4, np.float32))
    written = {"connections": settled(), "layout": layout_of()}
    Path(sys.argv[1], f"rank.{ddl.rank()}.json").write_text(json.dumps(written))
    ddl.barrier()  # who ends closes its connections
    ddl.shutdown()


if __name__ == "__main__":
    main()
