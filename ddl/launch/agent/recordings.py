"""What the ranks of this host record: their launcher holds it open, so that it can be read after their end, too."""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterable, List, Optional

from ddl import clock
from ddl.errors import ProtocolError
from ddl.launch.agent.failures import Exit
from ddl.records.announcement import RecordsSocket
from ddl.records.connections import connections_of, sent_by_rail
from ddl.records.dump import ProcessView, RankDump
from ddl.records.follow import RankNews, RecordFollower
from ddl.records.layout import ProcessRecord
from ddl.records.living import with_what_runs
from ddl.records.memory import ProcessMemory
from ddl.records.process import OutOfMemory, process_name, process_state, process_view
from ddl.records.sample import RankSample, sample_of

__all__ = ["VARIABLE", "Recordings"]

VARIABLE = "DDL_RECORDS"  #: of ranks: ``name``
_LAST = 256  # operations of each communicator that a dump keeps


class Recordings:
    """The records of ranks, by their number in the job. A rank may be a process that the started one has started."""

    def __init__(self, out_of_memory: OutOfMemory) -> None:
        self._socket = RecordsSocket()
        self._memories: Dict[int, ProcessMemory] = {}
        self._names: Dict[int, str] = {}  # of the processes
        self._followers: Dict[int, RecordFollower] = {}  # of the ranks whose operations have been told
        self._last_news: Optional[List[RankNews]] = None  # of ranks that were let go; None: nobody wants to know
        self._out_of_memory = out_of_memory

    @property
    def name(self) -> str:
        """By which ranks find this."""
        return self._socket.name

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``hear`` has something to do."""
        return self._socket.fileno()

    def hear(self) -> None:
        """Take what ranks have passed on. One that passes another record on has begun anew.

        In elastic jobs a process passes its own on again with each generation.
        """
        for pid, fd in self._socket.receive():
            memory = ProcessMemory(pid, fd)
            record = _read(memory, last=0)
            number = -1 if record is None else int(record.identity.get("number", -1))
            if number < 0:
                memory.close()
                continue
            known = self._memories.get(number)
            if known is not None and known.is_same(memory):
                memory.close()
                continue
            self.let_go(number)
            self._memories[number], self._names[number] = memory, process_name(pid) or self._names.get(number, "")

    def has(self, rank: int) -> bool:
        """Return whether this rank's record is held."""
        return rank in self._memories

    def let_go(self, rank: int) -> None:
        """Forget the record of a rank: it takes memory as long as it is held."""
        memory = self._memories.pop(rank, None)
        if memory is not None:
            if self._last_news is not None:
                self._last_news += self._news_of(rank, memory, last=True)
            self._followers.pop(rank, None)
            memory.close()

    def take(self, exits: Iterable[Optional[Exit]], window: float = 0.0) -> List[RankDump]:
        """Return the dumps of all ranks that have recorded something; ``exits``: of those that have ended.

        Those that run are asked for their Python stacks, and their connections are watched for ``window`` seconds
        (living.py). Those that have ended are let go.
        """
        self.hear()
        ends = {entry.rank: entry for entry in exits if entry is not None}
        taken = clock.now()
        dumps = []
        for rank, memory in sorted(self._memories.items()):
            record, end = _read(memory, _LAST), ends.get(rank)
            if record is None:
                continue
            process = process_view(memory.pid) if end is None else self._ended(memory.pid, self._names[rank], end)
            code, stopped = (None, False) if end is None else (end.code, end.stopped)
            dumps.append(RankDump(taken, process, record, code, stopped))
        for rank in self._memories.keys() & ends.keys():
            self.let_go(rank)
        return with_what_runs(dumps, window)

    def samples(self, rails: bool = False) -> List[RankSample]:
        """Return a sample of each rank that has recorded something, and has not ended; ``rails``: with its rails."""
        self.hear()
        samples = []
        pids = (memory.pid for memory in self._memories.values()) if rails else ()
        connections = connections_of(pids)
        for _, memory in sorted(self._memories.items()):
            state, record = process_state(memory.pid), _read(memory, last=1)
            if record is not None and state != "has ended":
                over = sent_by_rail(connections.get(memory.pid, ()))
                samples.append(dataclasses.replace(sample_of(record, state, clock.now()), rails=over))
        return samples

    def news(self, last: bool = False) -> List[RankNews]:
        """Return what the ranks have done since the last call, or since their begin.

        The ``last`` call also returns what has begun, and not ended. From the first call on, ranks that are let go are
        read before.
        """
        self.hear()
        news, self._last_news = self._last_news or [], []
        for rank, memory in sorted(self._memories.items()):
            news += self._news_of(rank, memory, last)
        return news

    def no_news(self) -> None:
        """Nobody wants to know any more: keep nothing of ranks that are let go."""
        self._last_news, self._followers = None, {}

    @property
    def fill(self) -> float:
        """The part of the fullest ring of a rank that was new in the last call of ``news``."""
        return max((follower.fill for follower in self._followers.values()), default=0.0)

    def _news_of(self, rank: int, memory: ProcessMemory, last: bool) -> List[RankNews]:
        follower = self._followers.setdefault(rank, RecordFollower(memory))
        try:
            return follower.news(clock.now(), last)
        except ProtocolError:  # as in _read
            return []

    def close(self) -> None:
        """Let go of all. Idempotent."""
        self._last_news = None
        for rank in list(self._memories):
            self.let_go(rank)
        self._socket.close()

    def _ended(self, pid: int, name: str, end: Exit) -> ProcessView:
        killed = end.code in (-9, 128 + 9) and not end.stopped
        return ProcessView(pid, "has ended", out_of_memory=self._out_of_memory.words(pid, name) if killed else None)


def _read(memory: ProcessMemory, last: int) -> Optional[ProcessRecord]:
    try:
        return memory.record(last=last)
    except ProtocolError:  # of another version of DDL, or overwritten by a broken program: nothing that we can show
        return None
