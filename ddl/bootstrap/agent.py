"""The agent: one thread per process that accepts connections, and carries news of failures and of late ranks.

Because it accepts connections, other ranks can reach this one while its program computes. It takes the reports of this
process's communicators to the store, answers the store's questions, and brings back the verdict, which is the same for
all ranks. Every few seconds it tells the store this rank's pace. It sleeps in a selector and never touches data.

Where ranks come and go, it also drives what takes this process from one generation to the next (generations.py), and
sees the end of processes on this host. "Rank" is then the number of a process (ddl/store/server.py).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence

from ddl import _core
from ddl.bootstrap.agent_loop import AgentLoop
from ddl.bootstrap.agent_records import Arrivals, DataConnection, Member
from ddl.bootstrap.generations import KINDS, Generations
from ddl.bootstrap.peer_handshake import Nonce, accept_data, accept_memory
from ddl.bootstrap.plain_end import plain_end
from ddl.bootstrap.process_ends import ProcessEnds
from ddl.bootstrap.rail_news import RailEnds, RailNews
from ddl.bootstrap.statements import own_failure, state, suspicion
from ddl.bootstrap.stragglers import Stragglers
from ddl.bootstrap.whereabouts import call_in, where_is
from ddl.errors import Error
from ddl.net.address import fell_silent
from ddl.net.encryption import EncryptedSocket
from ddl.net.newcomers import Complaints, Door, in_a_thread
from ddl.net.shortage import Shortage
from ddl.store.verdict import ALL
from ddl.store.watch import WatchClient
from ddl.text.units import counted, duration

__all__ = ["Agent"]

log = logging.getLogger("ddl")

_PARTING_SECONDS = 1.0  # for the store to read a goodbye
_CROWDED = 4  # ranks on a core: everything takes its time there, and who waits should know
_REMEMBERED = 4096  # removed communicators: a goodbye names them all


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
        rail_ends_of: Callable[[int, int], Optional[RailEnds]],
        congestion: str = "auto",
        encrypt: bool = False,
        generations: Optional[Generations] = None,
        ranks_per_core: float = 0.0,
    ) -> None:
        self._rank = rank
        self._crowd = (
            f" ({ranks_per_core:.0f} ranks share each core of this host)" if ranks_per_core >= _CROWDED else ""
        )
        self._generations = generations
        self._congestion = congestion
        self._watch = watch
        self._nonce_of = nonce_of
        self.stragglers = Stragglers(rank, watch.size, label_of)
        self._rails = RailNews(rank, rail_ends_of)
        self.shortage = Shortage(f"rank {rank} cannot make connections")
        self._members: Dict[int, Member] = {}
        # What was called on the communicators that are removed: the last of them, in the order of removal.
        self._submitted: Dict[str, int] = {}
        self._arrived = Arrivals()
        self._failures: List[Dict[str, Any]] = []  # verdicts, also of communicators that are not here (yet)
        self._changed = threading.Condition()
        self._loop = loop = AgentLoop(rank, self.shortage)
        self._ends = ProcessEnds(loop.selector)  # of processes on this host
        complaints = Complaints(f"rank {rank}", self.shortage)
        door = partial(Door, secret=secret, selector=loop.selector, complaints=complaints)
        self._doors = [
            *(
                door(listener, welcome=in_a_thread(self._welcome_data, complaints), encrypt=encrypt, read_ahead=True)
                for listener in data_listeners
            ),
            door(memory_listener, welcome=in_a_thread(self._welcome_memory, complaints)),  # it leads to this host only
        ]
        for each in self._doors:
            loop.do_often(each.patience, each.tick)
        if generations is not None:
            loop.do_often(generations.patience, generations.tick)
        loop.do_often(self.stragglers.patience, self._tell_pace)
        loop.register(watch.fileno(), self._hear)
        self._hears = True  # the watch is registered
        try:
            loop.start()
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
            self._loop.register(member.core.report_fd, lambda: self._report(member))
            failures = [failure for failure in self._failures if failure["comm"] in (ALL, member.number)]
        for failure in failures:  # faster than this rank, which was still making the communicator
            self._fail(member, failure)
        for connection in early:
            member.core.add_connection(*connection)

    def remove(self, member: Member) -> None:
        """Stop looking after ``member``, after a last look at what it has to report."""
        with self._changed:
            if self._members.pop(member.number, None) is None:
                return
            member.core.set_agent(False)
            self._loop.selector.unregister(member.core.report_fd)
            self._submitted[str(member.number)] = member.core.submitted
            if len(self._submitted) > _REMEMBERED:
                del self._submitted[next(iter(self._submitted))]
        try:
            self._report(member)  # its process may be leaving because of just that
        except (OSError, Error) as error:
            log.debug("rank %d: could not report: %s", self._rank, error)
        self._rails.forget(member.number)

    def memory_of(self, rank: int, timeout: float) -> _core.PeerMemory:
        """Return the arena of ``rank``, which has connected or will within ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: rank in self._arrived.memories, timeout):
                raise Error(f"rank {rank} said that it had swapped memory with this rank, but it did not")
            return self._arrived.memories[rank]

    def tell(self, message: Dict[str, Any]) -> None:
        """Send a message to the store. Raises PeerLost."""
        self._watch.send(message)

    def forget(self, rank: int) -> None:
        """Let go of the memory of a process of this host that is in no generation any more."""
        with self._changed:
            self._arrived.memories.pop(rank, None)
            self._ends.forget(rank)
        if self._generations is not None:
            self._generations.forget(rank)

    def know(self, rank: int, cell_fd: int, pid: int) -> None:
        """Process ``pid`` of this host is ``rank``, and has passed its vote cell: see its end, and vote for it then."""
        if self._generations is None:
            os.close(cell_fd)
            return
        self._generations.neighbour(rank, cell_fd)
        with self._changed:
            if not self._loop.ended.is_set():
                self._ends.watch(rank, pid, lambda: self._process_ended(rank))

    def _process_ended(self, rank: int) -> None:
        with self._changed:
            watched = self._ends.forget(rank)
        if watched and self._generations is not None:
            self._generations.died(rank)

    def break_all(self, kind: str, reason: str) -> None:
        """Fail every communicator of this process: there is another generation, or none for it."""
        with self._changed:
            members = list(self._members.values())
        for member in members:
            member.core.fail(kind, -1, reason, False)

    def follow(self, watch: WatchClient) -> None:
        """Listen to another store from now on."""
        with self._changed:
            if self._loop.ended.is_set():
                watch.close()
                return
            before, self._watch = self._watch, watch
            # Whom the old store took for lost, the new one may accept: it will say itself who is gone.
            self._failures = [failure for failure in self._failures if failure["comm"] != ALL]
            if self._hears:
                self._loop.selector.unregister(before.fileno())
            before.close()
            self._loop.register(watch.fileno(), self._hear)
            self._hears = True
        self._loop.wake()

    def close(self, *, goodbye: bool = True) -> None:
        """Leave: tell the store that this rank goes of its own will, end the thread, close everything."""
        with self._changed:  # so that a connection that is just arriving is not overlooked
            if self._loop.ended.is_set():
                return
            self._loop.ended.set()
        self._loop.join()
        if goodbye:
            try:
                self._watch.send({"type": "bye", "submitted": self._submitted})
                self._watch.part(_PARTING_SECONDS)
            except (OSError, Error) as error:
                log.debug("rank %d: could not say goodbye: %s", self._rank, error)
        self._release()
        if self._generations is not None:
            self._generations.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of what is the parent's, so that its end is seen when it ends.

        Takes no lock: a thread that is not here may hold it.
        """
        self._loop.ended.set()
        self._release()
        if self._generations is not None:
            self._generations.close_in_child()

    def _release(self) -> None:
        self._loop.close()
        for door in self._doors:
            door.close()
        self._doors = []  # they know this agent, and would keep it
        self._watch.close()
        self._ends.close()
        for connections in self._arrived.data.values():
            for connection in connections:
                os.close(connection.fd)
        self._arrived = Arrivals()

    # --- the thread ---

    def _welcome_data(self, sock: socket.socket) -> None:
        hello = accept_data(sock, self._congestion)
        if "follows" in hello and self._generations is not None:
            with plain_end(sock) as plain:
                self._generations.serve_state(plain)
            return
        if "member" in hello and self._generations is not None:
            sender, message = hello["member"], hello.get("said")
            if type(sender) is not int or not isinstance(message, dict):
                raise Error(f"a member said {hello!r:.200}, which makes no sense")
            self._generations.heard_member(sender, message)
            return
        limits = {"communicator": 2**62, "rank": 2**31, "stream": 2**31}
        said = [(hello.get(key), limit) for key, limit in limits.items()]
        numbers = [value for value, limit in said if isinstance(value, int) and 0 <= value < limit]
        if len(numbers) != 3:
            raise Error(f"a peer said {hello!r} instead of communicator, rank and stream")
        number, rank, stream = numbers
        tls = sock.session if isinstance(sock, EncryptedSocket) else None
        with self._changed:
            if self._loop.ended.is_set() or str(number) in self._submitted:
                return  # it comes too late: nobody would ever take it
            # A copy might be one descriptor too many, and the peer takes itself for connected.
            connection = DataConnection(rank, stream, sock.detach(), tls)
            member = self._members.get(number)
            if member is None:
                self._arrived.data.setdefault(number, []).append(connection)
                return
        member.core.add_connection(*connection)

    def _welcome_memory(self, sock: socket.socket) -> None:
        rank, memory, cell_fd, pid = accept_memory(sock, self._nonce_of, self.cell_fd)
        if cell_fd >= 0:
            self.know(rank, cell_fd, pid)
        with self._changed:
            self._arrived.memories[rank] = memory
            self._changed.notify_all()

    @property
    def cell_fd(self) -> int:
        """The descriptor of this process's vote cell; -1 where ranks do not come and go."""
        return self._generations.own_cell.fd if self._generations is not None else -1

    def _report(self, member: Member) -> None:
        while True:
            report = member.core.take_report()
            if report is None:
                return
            culprit = member.ranks[report.peer] if 0 <= report.peer < len(member.ranks) else -1
            if report.type == "rail":
                self._rails.take(member.number, culprit, report.rail, report.works, report.reason)
                continue
            if report.type == "failed":
                self._watch.send(own_failure(member, report, culprit))
            else:
                member.core.tend()  # so that it knows which peers are silent now
                here = where_is(self._all_members())
                self._watch.send(suspicion(member, report, culprit, here, self.shortage.text))

    def _tell_pace(self) -> None:
        pace = self.stragglers.report()
        if pace is not None:
            self._watch.send(pace)

    def _hear(self) -> None:
        while True:
            watch = self._watch
            message = watch.receive()
            if message is None:
                with self._changed:
                    if watch is not self._watch:
                        return  # there is another store already
                    self._loop.selector.unregister(watch.fileno())
                    self._hears = False
                if self._generations is not None:
                    if watch.broken:  # the others may still have that store, and go on without this rank
                        log.warning("rank %d: %s", self._rank, watch.broken)
                    self._generations.store_lost()
                    return
                self.stragglers.stop()
                gone = "the process that had the job's store (ddlrun, or rank 0 of another launcher's job) is gone"
                host = f"the host of the job's store, {watch.address},"
                silent = fell_silent(watch.silent(), watch.host_timeout, host)
                reason = f"this rank cannot go on: {watch.broken}" if watch.broken else silent or gone
                self._failed({"comm": ALL, "kind": "PeerLost", "culprit": -1, "reason": reason})
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
        elif kind in KINDS and self._generations is not None:
            self._generations.heard(message)
        elif kind == "stall":
            self._say_what_is_awaited(message)

    def _all_members(self) -> List[Member]:
        with self._changed:
            return list(self._members.values())

    def _say_what_is_awaited(self, stall: Dict[str, Any]) -> None:
        with self._changed:
            member = self._members.get(stall["comm"])
        if member is None:
            return
        others = f", as {counted(stall['others'], 'other rank')} {'does' if stall['others'] == 1 else 'do'}"
        log.warning(
            "rank %d: still waiting, for %s, in %s%s: %s%s",
            *(self._rank, duration(stall["seconds"]), call_in(member, stall["seq"])),
            *(others if stall["others"] > 0 else "", stall["text"], self._crowd),
        )

    def _failed(self, failure: Dict[str, Any]) -> None:
        comm = failure["comm"]
        with self._changed:
            self._failures.append(failure)
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
        here = where_is(self._all_members())
        answer = state(member, probe, here, self.shortage.text)
        answer["held"] = self._generations is not None and self._generations.is_held
        self._watch.send(answer)
