"""A store for ranks that are started by hand: ``python -m ddl.tools.bench.store HOST:PORT RANKS``.

The secret is in DDL_SECRET. It serves until its standard input is closed.
"""

from __future__ import annotations

import os
import sys

from ddl.bootstrap.address import parse_address
from ddl.bootstrap.store import StoreServer

if __name__ == "__main__":
    host, port = parse_address(sys.argv[1])
    with StoreServer(bytes.fromhex(os.environ["DDL_SECRET"]), int(sys.argv[2]), host, port):
        sys.stdin.read()
