"""``OtherWork``: whether other programs have used the machines of a job while it measured.

What is measured beside others is about them. Each machine's kernel says how long its cores were busy, and each rank
how much of that was its own.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from typing import Dict, List, NamedTuple, Sequence

from ddl import clock
from ddl.communicator import Communicator
from ddl.machine import boot_id

__all__ = ["MOST", "OtherWork", "Share", "busy_hosts", "busy_seconds"]

MOST = 0.25  #: cores of a machine that others may use; a system that is idle, with ddlrun, uses a twentieth


class Share(NamedTuple):
    """What a rank says. Of a machine, which may seem to be several hosts; times in seconds."""

    machine: str
    host: str
    cores: int
    elapsed: float
    busy: float  #: of all cores of the machine
    own: float  #: of this rank


def busy_hosts(shares: Sequence[Share]) -> List[str]:
    """Return a text for each machine that others have used: ``host a (1.9 of its 2 cores)``."""
    machines: Dict[str, List[Share]] = {}
    for share in shares:
        machines.setdefault(share.machine, []).append(share)
    texts = []
    for ranks in machines.values():
        first = ranks[0]
        others = (first.busy - sum(rank.own for rank in ranks)) / max(first.elapsed, 1e-3)
        if others > MOST:
            texts.append(f"host {first.host} ({min(others, first.cores):.1f} of its {first.cores} cores)")
    return texts


class OtherWork:
    """What others do from now on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = clock.now(), busy_seconds(), time.process_time()

    def told(self, world: Communicator) -> str:
        """Return which machines others have used until now; empty: none. Collective, blocking; alike on all ranks."""
        own = Share(
            boot_id() or platform.node(),
            socket.gethostname(),
            os.cpu_count() or 1,
            clock.now() - self._began,
            busy_seconds() - self._busy,
            time.process_time() - self._own,
        )
        texts = busy_hosts([Share(*share) for share in world.allgather_object(list(own))])
        return f"other programs have used {', '.join(texts)} while DDL measured" if texts else ""


def busy_seconds() -> float:
    """Return how long this machine's cores have run programs since it started, and what other machines took of them."""
    with open("/proc/stat", encoding="ascii") as stat:
        fields = stat.readline().split()[1:]
    user, nice, system = map(int, fields[:3])
    steal = int(fields[7]) if len(fields) > 7 else 0  # interrupts are left out: they may be the job's own
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")
