"""The server of the job's store: keys and values, check-in of all ranks, and the watch connections.

It runs in one daemon thread of its own (in ``ddlrun``), which owns every connection (server_connections.py). One
selector loop serves them, so that no stranger, however slow, keeps a rank waiting. A connection goes through three
phases: the handshake of ddl/net/auth.py (at a ``Door``, which bounds what strangers cost), one ``hello`` that claims a
rank, and then messages of a watch (``watch``: requests, see requests.py, the pace, see pace.py, and all that concerns
the verdict, see verdict.py). A process that is not in the job yet only asks (``store``). ddlrun's agents on other hosts
speak to it over a third kind of connection (``agent``, see ddl/launch/agent/control.py), which only passes through
here. A watch or an agent may open further connections, its *ways*, over other networks (session.py): it is gone when
all of them are, or when one ends as connections of ended processes do.

Where ranks come and go, "rank" is the number of a process: the rank that it had at first, or for one that came later
a number that nobody had before. The watch then also carries what members say (membership/).
"""

from __future__ import annotations

import collections
import dataclasses
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Callable, Deque, Dict, Iterable, Optional, Set, Tuple, Type

from ddl import clock
from ddl.errors import InvalidArgument
from ddl.net.address import HOST_TIMEOUT, apart_after, fell_silent
from ddl.net.auth import check_secret, encode_frame
from ddl.store.membership.limits import ElasticLimits
from ddl.store.membership.membership import Membership
from ddl.store.membership.records import FIRST_BALLOT, BallotNumber, GenerationRecord, first_record
from ddl.store.messages import Message, Outgoing
from ddl.store.pace import Pace
from ddl.store.requests import Requests
from ddl.store.server_connection import Claim
from ddl.store.server_connections import ServerConnections
from ddl.store.verdict import JobVerdicts

__all__ = ["FromAgent", "StoreServer"]

_COUNTS_OF_A_STORE = 1 << 24  # which no store comes to
_MOST_PROCESSES = 1 << 30  # of a job, one after the other

#: Called in the server's thread with an agent's host number and what it said. When its connection is gone: ``gone``
#: (silent: for how many seconds its host had not answered; why: empty if it has just ended).
FromAgent = Callable[[int, Message], None]


class StoreServer(ServerConnections):
    """An authenticated key-value store for the ranks of one job. Its methods may be called from any thread.

    ``address`` is what clients connect to. With ``start=False`` they wait in the kernel's queue until ``start()``:
    for a launcher that forks before it has threads. ``close()`` is idempotent; it ends the thread and all
    connections. ``agents`` hosts may have an agent, whose messages go to ``from_agent``. One each, also after it has
    gone, but for hosts that ``readmit`` names. With ``encrypt`` nobody is let in who does not encrypt; else they may.
    A host that has been silent for ``host_timeout`` seconds, or the network to it, is given up; all are told of that.

    With ``elastic`` ranks may come and go. ``witness``: this process is none of them, and votes, too. A successor of
    another store (``succeeds``) begins with the generation that there was, its own election, and whether something was
    under way. ``generation_formed`` is called in the server's thread with each new generation.
    """

    def __init__(
        self,
        secret: bytes,
        size: int,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        start: bool = True,
        agents: int = 0,
        from_agent: FromAgent = lambda host, message: None,
        elastic: Optional[ElasticLimits] = None,
        witness: bool = True,
        succeeds: Optional[Tuple[GenerationRecord, BallotNumber, bool]] = None,
        generation_formed: Callable[[Message], None] = lambda news: None,
        encrypt: bool = False,
        host_timeout: float = HOST_TIMEOUT,
    ) -> None:
        if size < 1:
            raise InvalidArgument(f"a store for {size} ranks; a job has at least one")
        self._size = size
        self._agents = agents
        self._from_agent = from_agent
        self._posts: Deque[Tuple[int, Message]] = collections.deque()  # for agents, by any thread
        self._departed: Set[int] = set()  # hosts whose agents have gone
        self._readmitted: Deque[int] = collections.deque()  # of these, by any thread
        self._told: Deque[Tuple[int, str]] = collections.deque()  # ranks whose processes have ended, by any thread
        self._ends: Dict[int, str] = {}  # how ranks' processes ended
        self._hosts: Dict[int, str] = {}  # of the ranks that have come, for people; any thread may read
        self._verdict = JobVerdicts(size, self._host_id, apart_after(host_timeout))
        self._pace = Pace(size)
        self._requests = Requests(size)
        self._asks_as: Dict[int, str] = {}  # by rank: the role of the connection that asks for it
        self._membership: Optional[Membership] = None
        self._generation_formed = generation_formed
        self._removed: Deque[int] = collections.deque()  # processes that are to leave, by any thread
        if elastic is not None:
            record, ballot, interrupted = succeeds or (first_record(size, witness=witness), FIRST_BALLOT, False)
            self._membership = Membership(record, elastic, ballot, interrupted=interrupted, now=clock.now())
            self._verdict.renumber(record.members)
            self._requests = Requests(size, ballot.epoch * _COUNTS_OF_A_STORE)
            self._pace.renumber(record.members)
        self._closing = threading.Lock()
        self._closed = False
        super().__init__(check_secret(secret), host, port, encrypt, host_timeout)
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._deliver_posts)
        self._thread = threading.Thread(target=self._run, name="ddl-store", daemon=True)
        if start:
            try:
                self.start()
            except RuntimeError:  # no thread can be started
                self.close()
                raise

    def start(self) -> None:
        """Begin to serve. Once."""
        self._thread.start()

    def post(self, host: int, message: Message) -> None:
        """Send ``message`` to the agent of ``host``; nothing happens if it has none (any more)."""
        self._posts.append((host, message))
        self._waker.send(b"x")

    def readmit(self, host: int) -> None:
        """Let ``host``, whose agent has gone, have another one. What was posted before does not reach that one."""
        self._readmitted.append(host)
        self._waker.send(b"x")

    def ended(self, rank: int, how: str) -> None:
        """Tell those who wait for ``rank`` that its process has ended, as ``how`` says: a launcher sees it first."""
        self._told.append((rank, how))
        self._waker.send(b"x")

    def remove(self, incarnation: int) -> None:
        """Let a process leave the job between two steps; nothing happens where ranks do not come and go."""
        self._removed.append(incarnation)
        self._waker.send(b"x")

    @property
    def first_failure(self) -> Optional[Message]:
        """The first verdict of the job (kind, culprit, reason), if there is one."""
        return self._verdict.first_failure

    def host_of(self, rank: int) -> str:
        """Return the name of the host of a rank that has come; "" if it has not."""
        return self._hosts.get(rank, "")

    def _host_id(self, rank: int) -> str:
        """Return what tells the host of a rank apart; that of a rank that has not come is its own."""
        known = self._hosts if self._membership is None else self._membership.hosts
        return known.get(rank) or f"that of rank {rank}"

    @property
    def late(self) -> Dict[int, float]:
        """The ranks that come late now, and by how many seconds to each operation."""
        return self._pace.late

    def close(self) -> None:
        """End the thread and every connection. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._thread.ident is None:  # never started
                self._release()
            else:
                self._waker.send(b"x")
                self._thread.join()
            for sock in (self._wake, self._waker):  # here, as the thread may have ended before it was woken
                sock.close()

    def close_when_alone(self, patience: float) -> None:
        """Close as soon as no rank is there any more, at the latest after ``patience`` seconds."""
        deadline = clock.now() + patience
        while self._verdict.present and clock.now() < deadline:
            time.sleep(0.005)
        self.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of what is the parent's, so that its end is seen when it ends."""
        if not self._closed:
            self._closed = True
            self._release()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    # Everything below runs in the server's thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn(self._patience())
                self._tick(clock.now())
        finally:
            self._release()

    def _deliver_posts(self) -> None:
        try:
            self._wake.recv(4096)
        except BlockingIOError:
            return
        while self._posts:
            host, message = self._posts.popleft()
            self._tell("agent", host, encode_frame(message))
        while self._readmitted:
            self._departed.discard(self._readmitted.popleft())
        while self._told:
            rank, how = self._told.popleft()
            self._ends[rank] = how
            self._look_for_goodbye(rank)
            if self._membership is not None and self._verdict.is_present(rank):
                self._deliver(self._membership.lost(rank, how, clock.now()))
            self._miss(rank)
        while self._removed:
            incarnation = self._removed.popleft()
            if self._membership is not None:
                self._deliver(self._membership.remove(incarnation, clock.now()))

    def _look_for_goodbye(self, rank: int) -> None:
        """Read what has come from a rank of whose end somebody else has told: it may have left of its own will."""
        holder = self._claims.get(("watch", rank))
        while holder is not None and self._look_at(holder):
            holder = self._claims.get(("watch", rank))

    def _miss(self, rank: int) -> None:
        """Let nobody wait for a rank whose process has ended, unless another process speaks for it."""
        if rank in self._ends and not any((role, rank) in self._claims for role in ("store", "watch")):
            self._reply(self._requests.gone(rank, self._ends[rank]))

    def _patience(self) -> float:
        deadlines = [self._verdict.next_deadline(), self._requests.next_deadline(), self._next_deadline()]
        if self._membership is not None:
            deadlines.append(self._membership.next_deadline())
        # epoll rounds down to whole milliseconds, so 1 ms more than asked saves a busy loop.
        return max(0.0, min(deadline for deadline in deadlines if deadline is not None) - clock.now()) + 0.001

    def _tick(self, now: float) -> None:
        self._deliver(self._verdict.tick(now))
        self._reply(self._requests.tick(now))
        if self._membership is not None:
            self._deliver(self._membership.tick(now))
        self._follow_up(now)

    def _follow_up(self, now: float) -> None:
        """Let what the verdict found count for the membership, and tell the launcher of new generations."""
        membership = self._membership
        if membership is None:
            self._verdict.blamed.clear()
            return
        while self._verdict.blamed:
            rank, reason = self._verdict.blamed.pop(0)
            self._deliver(membership.lost(rank, reason, now))
        while membership.blamed:
            self._deliver(self._verdict.lost(*membership.blamed.pop(0)))
        self._verdict.blamed.clear()
        while membership.generations:
            news = membership.generations.pop(0)
            self._verdict.renumber(news["members"])
            self._pace.renumber(news["members"])
            self._generation_formed(news)

    def _welcome_fields(self, claim: Claim) -> Message:
        membership = self._membership
        if membership is None:
            # Of a host that has an agent, that one tells. It can wait for longer than TCP for a ddlrun that is stopped
            # and reads nothing.
            apart = self._everywhere and not self._agents
            return {"size": self._size, "watched": claim.role == "agent" or (claim.role == "watch" and apart)}
        told = {"limits": dataclasses.asdict(membership.limits), "record": membership.record.message()}
        return {"size": self._size, "watched": True, "elastic": {**told, "ballot": [*membership.ballot[:2], 0]}}

    def _came(self, claim: Claim) -> None:
        if claim.role != "agent":
            self._hosts[claim.rank] = claim.host
            self._requests.back(claim.rank)
            self._requests.admit(claim.rank)
        if claim.role == "watch":
            self._deliver(self._verdict.joined(claim.rank, clock.now()))

    def _heard(self, claim: Claim, message: Message) -> None:
        now = clock.now()
        if claim.role == "agent":
            self._from_agent(claim.rank, message)
        elif claim.role == "store" or "ask" in message:
            gone = self._membership.why_absent(claim.rank) if self._membership is not None else ""
            self._asks_as[claim.rank] = claim.role
            self._reply(self._requests.handle(claim.rank, message, now, refused=gone))
        elif message.get("type") == "pace":
            self._deliver(self._pace.received(claim.rank, message))
        elif self._membership is not None and message.get("type") in Membership.KINDS:
            if message["type"] == "died":  # perhaps it has said goodbye, and nobody has looked yet
                self._look_for_goodbye(message.get("incarnation", -1))
            self._deliver(self._membership.received(claim.rank, message, now))
        elif self._membership is None:
            self._deliver(self._verdict.received(claim.rank, message, now))
        elif message.get("type") == "bye":
            self._deliver(self._verdict.received(claim.rank, message, now))
            self._deliver(self._membership.left(claim.rank, now))
        elif not self._membership.why_absent(claim.rank):  # else it waits for an old generation, and blames others
            self._deliver(self._verdict.received(claim.rank, message, now))

    def _gone(self, claim: Claim, reason: str, silent: float) -> None:
        if claim.role == "agent":
            self._departed.add(claim.rank)
            self._from_agent(claim.rank, {"type": "gone", "silent": silent, "why": reason})
            return
        if self._asks_as.get(claim.rank) == claim.role:
            self._requests.dropped(claim.rank)
        if claim.role == "watch":
            reason = reason or fell_silent(silent, self._host_timeout, "its host")
            if self._verdict.is_present(claim.rank):  # it has not said goodbye
                how = f"the process of rank {claim.rank} ended, as its connection closed without a goodbye,"
                self._ends.setdefault(claim.rank, f"rank {claim.rank} was lost ({reason})" if reason else how)
            now = clock.now()
            died = self._verdict.is_present(claim.rank)
            self._deliver(self._verdict.dropped(claim.rank, now, reason))
            if self._membership is not None and died:
                self._deliver(self._membership.gone(claim.rank, self._ends[claim.rank], now))
        self._miss(claim.rank)

    def _claim_problem(self, role: str, rank: int) -> str:
        if role == "agent":
            if 0 <= rank < self._agents and (role, rank) not in self._claims and rank not in self._departed:
                return ""
            return f"host {rank} of {self._agents} is none of this job's hosts, or has (or had) an agent already"
        if not 0 <= rank < (self._size if self._membership is None else _MOST_PROCESSES):
            return f"rank {rank} is not a rank of this job of {self._size}"
        holder = self._claims.get((role, rank))
        while holder is not None and self._look_at(holder):
            holder = self._claims.get((role, rank))  # it may have hung up, and nobody had looked yet
        if self._claims.get((role, rank)) is None:
            return ""
        return (
            f"rank {rank} of {self._size} is already taken by another process; "
            "every process of a job needs a rank of its own (DDL_RANK)"
        )

    def _deliver(self, outgoing: Outgoing) -> None:
        frames: Dict[int, bytes] = {}  # most messages go to everybody: encode them once
        for rank, message in outgoing:
            if id(message) not in frames:
                frames[id(message)] = encode_frame(message)
            self._tell("watch", rank, frames[id(message)])

    def _reply(self, replies: Iterable[Tuple[int, bytes]]) -> None:
        for rank, frame in replies:
            self._tell(self._asks_as[rank], rank, frame)
