"""What only a running rank can show: where its Python threads are, and the state of its connections."""

from __future__ import annotations

import dataclasses
import time
from typing import List, Sequence

from ddl import clock
from ddl.records.connections import connections_of, watched
from ddl.records.dump import RankDump
from ddl.records.stacks import python_stacks

__all__ = ["WINDOW", "with_what_runs"]

WINDOW = 1.0  #: seconds for which connections are watched when somebody asks how a job does now


def with_what_runs(dumps: Sequence[RankDump], window: float = 0.0) -> List[RankDump]:
    """Return the dumps of ranks of this host, completed for those that run.

    ``window``: for so many seconds connections are watched, if there are any. Otherwise it takes some milliseconds.
    """
    running = [dump.process.pid for dump in dumps if dump.exit is None]
    begin = clock.now()
    connections = connections_of(running)
    stacks = python_stacks(running)
    if window and any(connections.values()):
        time.sleep(max(0.0, begin + window - clock.now()))
        now = connections_of(running)
        connections = watched(connections, now, clock.now() - begin)
    return [
        dataclasses.replace(
            dump, stacks=stacks.get(dump.process.pid, ""), connections=connections.get(dump.process.pid, ())
        )
        for dump in dumps
    ]
