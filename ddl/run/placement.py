"""Which rank runs on which host: hosts and a number in, places out. Pure.

Ranks fill the hosts one after the other, as mpirun and horovodrun do, so that neighbours in rank order share memory.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.run.hosts import Host

__all__ = ["Placement", "place"]


@dataclass(frozen=True)
class Placement:
    """``counts[h]`` ranks on ``hosts[h]``, in the order of the hosts. Every host has at least one."""

    hosts: Tuple[str, ...]
    counts: Tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.counts)

    def ranks_of(self, host: int) -> range:
        """Return the ranks that run on ``hosts[host]``."""
        first = sum(self.counts[:host])
        return range(first, first + self.counts[host])

    def host_of(self, rank: int) -> int:
        """Return the number of the host on which ``rank`` runs."""
        ends = [sum(self.counts[: host + 1]) for host in range(len(self.counts))]
        return bisect.bisect_right(ends, rank)

    def __str__(self) -> str:
        return ",".join(f"{host}:{count}" for host, count in zip(self.hosts, self.counts))


def place(hosts: Sequence[Host], num_proc: Optional[int]) -> Placement:
    """Place ``num_proc`` ranks (None: as many as there are slots) on ``hosts``. ConfigError says what is missing.

    Where the hosts have no slots, the ranks are shared out evenly, the first hosts taking what is left over.
    """
    slots: List[int] = [host.slots for host in hosts if host.slots is not None]
    names = tuple(host.name for host in hosts)
    if not slots:
        if num_proc is None:
            raise ConfigError("the number of ranks is missing: -np N, or slots for every host (-H host:slots,…)")
        if num_proc < len(hosts):
            raise ConfigError(f"-np {num_proc} is less than the {len(hosts)} hosts; name fewer hosts")
        each, more = divmod(num_proc, len(hosts))
        return Placement(names, tuple(each + (at < more) for at in range(len(hosts))))
    if num_proc is None:
        return Placement(names, tuple(slots))
    if num_proc > sum(slots):
        given = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ConfigError(f"-np {num_proc}, but {given} are {sum(slots)} slots; name more hosts or more slots")
    counts: List[int] = []
    for available in slots:
        counts.append(min(available, num_proc - sum(counts)))
    used = [at for at, count in enumerate(counts) if count > 0]
    return Placement(tuple(names[at] for at in used), tuple(counts[at] for at in used))
