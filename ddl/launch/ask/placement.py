"""Which rank runs on which host. No I/O.

Ranks fill the hosts one after the other, as mpirun and horovodrun do, so that neighbours in rank order share memory;
unless a rankfile says otherwise, rank by rank (``rank 0=hostA slot=0``, as Open MPI and IBM's ddlrun read it).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.launch.ask.hosts import Host

__all__ = ["UNPLACED", "Placement", "parse_rankfile", "place"]

_RANK = re.compile(r"rank\s+([0-9]{1,6})\s*=\s*(\S+)(?:\s+slots?\s*=\s*\S+)?")


@dataclass(frozen=True)
class Placement:
    """``ranks[h]`` run on ``hosts[h]``, ascending. Every host has at least one, every rank has one host."""

    hosts: Tuple[str, ...]
    ranks: Tuple[Tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(ranks) for ranks in self.ranks)

    def host_of(self, rank: int) -> int:
        """Return the number of the host on which ``rank`` runs."""
        return next(number for number, ranks in enumerate(self.ranks) if rank in ranks)

    def __str__(self) -> str:
        return ",".join(f"{host}:{len(ranks)}" for host, ranks in zip(self.hosts, self.ranks))


#: No host is named: the ranks run on this machine, or on hosts that a script names later.
UNPLACED = Placement((), ())


def _filled(hosts: Sequence[str], counts: Sequence[int]) -> Placement:
    used = [(host, count) for host, count in zip(hosts, counts) if count > 0]
    ranks: List[Tuple[int, ...]] = []
    for _, count in used:
        first = sum(len(before) for before in ranks)
        ranks.append(tuple(range(first, first + count)))
    return Placement(tuple(host for host, _ in used), tuple(ranks))


def place(hosts: Sequence[Host], num_proc: Optional[int]) -> Placement:
    """Place ``num_proc`` ranks (None: as many as there are slots) on ``hosts``. ConfigError says what is missing.

    Where the hosts have no slots, the ranks are shared out evenly, the first hosts taking what is left over.
    """
    slots: List[int] = [host.slots for host in hosts if host.slots is not None]
    names = [host.name for host in hosts]
    if not slots:
        if num_proc is None:
            raise ConfigError("the number of ranks is missing: -np N, or slots for every host (-H host:slots,…)")
        if num_proc < len(hosts):
            raise ConfigError(f"-np {num_proc} is less than the {len(hosts)} hosts; name fewer hosts")
        each, more = divmod(num_proc, len(hosts))
        return _filled(names, [each + (at < more) for at in range(len(hosts))])
    if num_proc is None:
        return _filled(names, slots)
    if num_proc > sum(slots):
        given = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        raise ConfigError(f"-np {num_proc}, but {given} are {sum(slots)} slots; name more hosts or more slots")
    counts: List[int] = []
    for available in slots:
        counts.append(min(available, num_proc - sum(counts)))
    return _filled(names, counts)


def parse_rankfile(text: str, path: str) -> Placement:
    """Read ``rank N=HOST slot=S`` lines. Hosts are numbered as they first occur. ConfigError names the line."""
    ranks_of: Dict[str, List[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _RANK.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{path}:{number}: {entry!r}: write 'rank N=HOST slot=S'")
        ranks_of.setdefault(match[2], []).append(int(match[1]))
    ranks = sorted(rank for of_host in ranks_of.values() for rank in of_host)
    if not ranks or ranks != list(range(len(ranks))):
        raise ConfigError(f"{path}: it should name every rank from 0 up once, but has {ranks or 'none'}")
    return Placement(tuple(ranks_of), tuple(tuple(sorted(of_host)) for of_host in ranks_of.values()))
