"""``JobView``: a job as the dumps of its ranks show it. It finds the other ranks' side of a communicator or a call.

A rank is named here by the number of its process, as in the ranks of a communicator. Where ranks come and go, its
present rank may be another number; ``rank`` translates. Each host has a clock of its own. Times of two hosts are
compared only roughly, by the wall time that each rank has recorded with its own clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import DefaultDict, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ddl.records.dump import JobEnd, RankDump
from ddl.records.layout import WORLDS, CommunicatorRecord

__all__ = ["JobView", "same_host"]

_HOST = re.compile(r"\brank (\d+) \(host ([^,)]+)")
_EXIT = re.compile(r"\b(signal|status) (\d+)")


class JobView:
    """``dumps``: of one job, each of another rank. ``end``: what its launcher knows of it, if it has ended."""

    def __init__(self, dumps: Sequence[RankDump], end: Optional[JobEnd]) -> None:
        self.end = end
        self.dumps: Dict[int, RankDump] = {dump.number: dump for dump in dumps}
        self._records: Dict[int, Dict[int, CommunicatorRecord]] = {
            number: {record.number: record for record in dump.record.communicators}
            for number, dump in self.dumps.items()
        }
        self._sides: DefaultDict[Tuple[int, Tuple[int, ...]], Dict[int, CommunicatorRecord]] = defaultdict(dict)
        for number, records in self._records.items():
            for record in records.values():
                self._sides[record.number, record.ranks][number] = record
        numbers = [number for records in self._records.values() for number in records]
        self._generation = max((number // WORLDS for number in numbers), default=0)
        self._ranks = {number: dump.rank for number, dump in self.dumps.items()}
        self.members = self._members()
        #: Of which there is no dump.
        self.missing: Tuple[int, ...] = tuple(number for number in self.members if number not in self.dumps)
        self._hosts = self._known_hosts()

    def rank(self, number: int) -> int:
        """Return the rank of a process, by its number."""
        return self._ranks.get(number, number)

    def number(self, rank: int) -> int:
        """Return the number of the process that is ``rank`` now."""
        return next((number for number, other in self._ranks.items() if other == rank), rank)

    def host(self, number: int) -> str:
        """Return the host of a process; empty if it is not known."""
        return self._hosts.get(number, "")

    def name(self, number: int) -> str:
        """Return ``rank 2 (host b, pid 17)``."""
        host = self.host(number)
        details = [f"host {host}"] if host else []
        if number in self.dumps:
            details.append(f"pid {self.dumps[number].process.pid}")
        return f"rank {self.rank(number)}" + (f" ({', '.join(details)})" if details else "")

    def lost_host(self, number: int) -> Tuple[int, ...]:
        """Return all ranks of the host of a process, if none of them has a dump. () if some have, or nobody knows.

        A rank without a dump whose host nobody knows counts to the host of the rank beside it.
        """
        host = self.host(number)
        if not host or any(dump.host == host for dump in self.dumps.values()):
            return ()
        gone = {number}
        for steps in (1, -1):
            neighbour = number + steps
            while neighbour in self.missing and self.host(neighbour) in ("", host):
                gone.add(neighbour)
                neighbour += steps
        return tuple(sorted(gone | {other for other in self.missing if self.host(other) == host}))

    def exit(self, number: int) -> Optional[int]:
        """Return a process's status, or minus the signal that killed it. None: it runs, was told to end, or not known.

        If the dump does not say it, the launcher's words are read.
        """
        dump = self.dumps.get(number)
        if dump is not None and (dump.exit is not None or dump.stopped):
            return None if dump.stopped else dump.exit
        words = _EXIT.search(self.end.exits.get(self.rank(number), "")) if self.end is not None else None
        if words is None:
            return None
        return -int(words[2]) if words[1] == "signal" else int(words[2])

    def last_lines(self, number: int) -> Sequence[str]:
        """Return the last lines of a process on stderr, as its launcher has kept them."""
        return self.end.last_lines.get(self.rank(number), ()) if self.end is not None else ()

    def communicators(self, number: int) -> Iterator[CommunicatorRecord]:
        """Return a process's records of the newest generation's communicators, those that have failed included."""
        for record in self._records.get(number, {}).values():
            if record.number // WORLDS == self._generation:
                yield record

    def sides(self, like: CommunicatorRecord) -> Mapping[int, CommunicatorRecord]:
        """Return all processes' records of the communicator ``like``, by the numbers of the processes."""
        return self._sides[like.number, like.ranks]

    def record(self, number: int, like: CommunicatorRecord) -> Optional[CommunicatorRecord]:
        """Return a process's own record of the communicator ``like``; None if it has none."""
        return self.sides(like).get(number)

    def failure(self, number: int) -> str:
        """Return the first failure of a process's communicators; empty if none has failed."""
        return next((record.failure for record in self.communicators(number) if record.failure), "")

    def is_after(self, number: int, waiter: int, moment: float) -> bool:
        """Return whether the dump of a process was taken after ``moment``, a time of the host of ``waiter``.

        On one host this is exact. Of two hosts it is right as far as their wall clocks agree.
        """
        dump, other = self.dumps[number], self.dumps[waiter]
        if dump.host == other.host:
            return dump.taken >= moment
        return _wall(dump, dump.taken) >= _wall(other, moment)

    def _members(self) -> Tuple[int, ...]:
        """Return all processes of the newest generation, also those without a dump."""
        for records in self._records.values():
            whole = records.get(self._generation * WORLDS)
            if whole is not None:
                return whole.ranks
        sizes = [int(dump.record.identity.get("size", 0)) for dump in self.dumps.values()]
        size = max([*sizes, self.end.size if self.end is not None else 0])
        return tuple(sorted({*range(size), *self.dumps}))

    def _known_hosts(self) -> Dict[int, str]:
        hosts = {number: dump.host for number, dump in self.dumps.items()}
        for rank, host in _HOST.findall("\n".join(self._texts())):
            hosts.setdefault(self.number(int(rank)), host)
        return hosts

    def _texts(self) -> Iterator[str]:
        """Return all that names ranks with their hosts."""
        for records in self._records.values():
            yield from (record.failure for record in records.values())
        if self.end is not None:
            yield from self.end.exits.values()
            yield str((self.end.verdict or {}).get("reason", ""))
            for lines in self.end.last_lines.values():
                yield from lines


def same_host(view: JobView, numbers: Sequence[int]) -> str:
    """Return the host of all of these; empty if they have several."""
    hosts = {view.host(number) for number in numbers}
    return hosts.pop() if len(hosts) == 1 else ""


def _wall(dump: RankDump, moment: float) -> float:
    return dump.record.wall + moment - dump.record.monotonic
