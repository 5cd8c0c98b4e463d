"""The agent: one thread per process that accepts connections, and carries news of failures and of late ranks.

Because it accepts connections, other ranks can reach this one while its program computes. It takes the reports of this
process's communicators to the store, answers the store's questions, and brings back the verdict, which is the same for
all ranks. Every few seconds it tells the store this rank's pace. It sleeps in a selector and never touches data.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ddl import _core
from ddl.bootstrap.connect import Nonce, accept_data, accept_memory
from ddl.bootstrap.stragglers import Stragglers
from ddl.errors import Error
from ddl.store.newcomers import Complaints, Door, in_a_thread
from ddl.store.shortage import Shortage
from ddl.store.verdict import ALL
from ddl.store.watch import WatchClient

__all__ = ["Agent", "Member"]

log = logging.getLogger("ddl")

_REMEMBERED = 4096  # removed communicators: a goodbye names them all


@dataclass
class Member:
    """A communicator as the agent knows it. ``ranks[r]`` is the world rank of its rank ``r``."""

    number: int
    core: _core.Communicator
    ranks: Tuple[int, ...]


@dataclass
class _Arrivals:
    """What has connected and is not called for yet; guarded by the agent's lock."""

    memories: Dict[int, _core.PeerMemory] = field(default_factory=dict)
    data: Dict[int, List[Tuple[int, int, int]]] = field(default_factory=dict)  # communicator -> (rank, stream, fd)


class Agent:
    """Owns the process's listeners and its watch connection. ``close`` ends the thread; idempotent."""

    def __init__(
        self,
        *,
        rank: int,
        secret: bytes,
        watch: WatchClient,
        data_listeners: Sequence[socket.socket],
        memory_listener: socket.socket,
        nonce_of: Callable[[int], Nonce],
        label_of: Callable[[int], str],
        congestion: str = "auto",
    ) -> None:
        self._rank = rank
        self._congestion = congestion
        self._watch = watch
        self._nonce_of = nonce_of
        self.stragglers = Stragglers(rank, watch.size, label_of)
        self.shortage = Shortage(f"rank {rank} cannot make connections")
        self._members: Dict[int, Member] = {}
        # What was called on the communicators that are removed: the last of them, in the order of removal.
        self._submitted: Dict[str, int] = {}
        self._arrived = _Arrivals()
        self._failures: Dict[int, Dict[str, Any]] = {}  # verdicts by communicator, also of those not here (yet)
        self._changed = threading.Condition()
        self._stop_reader, self._stop_writer = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._closed = threading.Event()
        complaints = Complaints(f"rank {rank}", self.shortage)
        door = partial(Door, secret=secret, selector=self._selector, complaints=complaints)
        self._doors = [
            *(door(listener, welcome=in_a_thread(self._welcome_data, complaints)) for listener in data_listeners),
            door(memory_listener, welcome=in_a_thread(self._welcome_memory, complaints)),
        ]
        self._register(watch.fileno(), self._hear)
        self._register(self._stop_reader, lambda: None)
        self._thread = threading.Thread(target=self._run, name="ddl-agent", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no thread can be started: the store shall see at once that this rank does not come
            self._release()
            raise

    # --- for the communicators (any thread) ---

    def add(self, member: Member) -> None:
        """Look after ``member`` from now on and give it the connections that came early."""
        with self._changed:
            self._members[member.number] = member
            early = self._arrived.data.pop(member.number, [])
            member.core.set_agent(True)
            self._register(member.core.report_fd, lambda: self._report(member))
            failures = [self._failures[comm] for comm in (ALL, member.number) if comm in self._failures]
        for failure in failures:  # faster than this rank, which was still making the communicator
            self._fail(member, failure)
        for rank, stream, fd in early:
            member.core.add_connection(rank, stream, fd)

    def remove(self, member: Member) -> None:
        """Stop looking after ``member``, after a last look at what it has to report."""
        with self._changed:
            if self._members.pop(member.number, None) is None:
                return
            member.core.set_agent(False)
            self._selector.unregister(member.core.report_fd)
            self._submitted[str(member.number)] = member.core.submitted
            if len(self._submitted) > _REMEMBERED:
                del self._submitted[next(iter(self._submitted))]
        try:
            self._report(member)  # its process may be leaving because of just that
        except (OSError, Error) as error:
            log.debug("rank %d: could not report: %s", self._rank, error)

    def memory_of(self, rank: int, timeout: float) -> _core.PeerMemory:
        """Return the arena of ``rank``, which has connected or will within ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: rank in self._arrived.memories, timeout):
                raise Error(f"rank {rank} said that it had swapped memory with this rank, but it did not")
            return self._arrived.memories[rank]

    def close(self, *, goodbye: bool = True) -> None:
        """Leave: tell the store that this rank goes of its own will, end the thread, close everything."""
        with self._changed:  # so that a connection that is just arriving is not overlooked
            if self._closed.is_set():
                return
            self._closed.set()
        os.write(self._stop_writer, b"x")
        self._thread.join()
        if goodbye:
            try:
                self._watch.send({"type": "bye", "submitted": self._submitted})
            except (OSError, Error) as error:
                log.debug("rank %d: could not say goodbye: %s", self._rank, error)
        self._release()

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of what is the parent's, so that its end is seen when it ends.

        Takes no lock: a thread that is not here may hold it.
        """
        self._closed.set()
        self._release()

    def _release(self) -> None:
        self._selector.close()
        for door in self._doors:
            door.close()
        self._doors = []  # they know this agent, and would keep it
        self._watch.close()
        for fd in (self._stop_reader, self._stop_writer):
            os.close(fd)
        for connections in self._arrived.data.values():
            for _, _, fd in connections:
                os.close(fd)
        self._arrived = _Arrivals()

    # --- the thread ---

    def _register(self, fd: int, action: Callable[[], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _run(self) -> None:
        while not self._closed.is_set():
            ready = self._selector.select(min(self.stragglers.patience(), *(door.patience() for door in self._doors)))
            due = (door.tick for door in self._doors)
            for action in [*(key.data for key, _ in ready), *due, self._tell_pace]:
                if self._closed.is_set():
                    return
                try:
                    action()
                except (OSError, Error) as error:
                    # A stranger or a broken connection must not end the agent; the ranks it concerns notice themselves.
                    if not self.shortage.met(error):
                        log.warning("rank %d: %s", self._rank, error)

    def _welcome_data(self, sock: socket.socket) -> None:
        hello = accept_data(sock, self._congestion)
        said = [hello.get(key) for key in ("communicator", "rank", "stream")]
        numbers = [value for value in said if isinstance(value, int) and 0 <= value < 2**31]
        if len(numbers) != 3:
            raise Error(f"a peer said {hello!r} instead of communicator, rank and stream")
        number, rank, stream = numbers
        with self._changed:
            if self._closed.is_set() or str(number) in self._submitted:
                return  # it comes too late: nobody would ever take it
            fd = sock.detach()  # a copy might be one descriptor too many, and the peer takes itself for connected
            member = self._members.get(number)
            if member is None:
                self._arrived.data.setdefault(number, []).append((rank, stream, fd))
                return
        member.core.add_connection(rank, stream, fd)

    def _welcome_memory(self, sock: socket.socket) -> None:
        rank, memory = accept_memory(sock, self._nonce_of)
        with self._changed:
            self._arrived.memories[rank] = memory
            self._changed.notify_all()

    def _report(self, member: Member) -> None:
        while True:
            report = member.core.take_report()
            if report is None:
                return
            culprit = member.ranks[report.peer] if 0 <= report.peer < len(member.ranks) else -1
            message: Dict[str, Any] = {"comm": member.number, "reason": report.reason, "members": list(member.ranks)}
            if report.type == "failed":
                message.update(type="fail", kind=report.kind, culprit=culprit)
            else:
                message.update(type="suspect", kind=report.type, seq=report.sequence, peer=culprit)
                message.update(op=report.operation, final=report.final, shortage=self.shortage.text)
                message.update(awaits_gpu=member.core.awaits_gpu(report.sequence))
            self._watch.send(message)

    def _tell_pace(self) -> None:
        pace = self.stragglers.report()
        if pace is not None:
            self._watch.send(pace)

    def _hear(self) -> None:
        while True:
            message = self._watch.receive()
            if message is None:
                self.stragglers.stop()
                self._selector.unregister(self._watch.fileno())
                self._failed(
                    {
                        "comm": ALL,
                        "kind": "PeerLost",
                        "culprit": -1,
                        "reason": "the process that had the job's store (ddlrun, or rank 0 of another launcher's job) "
                        "is gone",
                    }
                )
                return
            if not message:
                return
            self._obey(message)

    def _obey(self, message: Dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "fail":
            self._failed(message)
        elif kind == "probe":
            self._answer(message)
        elif kind == "departed":
            self._left(message["comm"], message["peer"])
        elif kind == "late":
            self.stragglers.heard(message)
        elif kind == "stall":
            log.warning("rank %d: still waiting: %s", self._rank, message["text"])

    def _failed(self, failure: Dict[str, Any]) -> None:
        comm = failure["comm"]
        with self._changed:
            self._failures[comm] = failure
            concerned = [member for number, member in self._members.items() if comm in (ALL, number)]
        for member in concerned:
            self._fail(member, failure)

    def _fail(self, member: Member, message: Dict[str, Any]) -> None:
        culprit = message["culprit"]
        if culprit >= 0 and culprit not in member.ranks:
            return  # another group's trouble
        local = member.ranks.index(culprit) if culprit >= 0 else -1
        member.core.fail(message["kind"], local, message["reason"], False)

    def _left(self, comm: int, peer: int) -> None:
        with self._changed:
            member = self._members.get(comm)
        if member is not None:
            member.core.note_departure(member.ranks.index(peer))

    def _answer(self, probe: Dict[str, Any]) -> None:
        with self._changed:
            member = self._members.get(probe["comm"])
            if member is not None:
                member.core.tend()  # somebody waits: perhaps for what this rank sent over a rail that is gone
        submitted = member.core.submitted if member is not None else 0
        text = member.core.operation_text(probe["seq"]) if member is not None else ""
        last = member.core.operation_text(submitted) if member is not None else ""
        self._watch.send(
            {
                "type": "state",
                "probe": probe["probe"],
                "submitted": submitted,
                "op": text,
                "last": last,
                "shortage": self.shortage.text,
                "awaits_gpu": member is not None and member.core.awaits_gpu(probe["seq"]),
            }
        )
