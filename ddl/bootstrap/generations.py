"""Takes this process from one generation of the job to the next: drives the ``Participant`` of ddl/store/membership.

The agent's thread brings what the store and other members say. The script's thread asks for the next generation and
waits. Connecting to another store, serving one, and calling other members take time, so each has a short-lived thread.
``docs/elastic.md`` tells the whole story.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

from ddl import clock
from ddl.bootstrap.vote_cell import SharedCell
from ddl.errors import ConfigError, Error, InternalError, LeftOut, ProtocolError, RendezvousError
from ddl.net.address import EVERYWHERE, format_address, is_loopback, parse_address
from ddl.net.auth import send_frame
from ddl.store.membership.acceptor import VoteCell
from ddl.store.membership.limits import ElasticLimits
from ddl.store.membership.participant import SELF, STORE, Participant
from ddl.store.membership.records import BallotNumber, GenerationRecord
from ddl.store.messages import Message, Outgoing
from ddl.store.server import StoreServer
from ddl.store.watch import WatchClient

__all__ = ["Effects", "Generations", "KINDS", "Source"]

log = logging.getLogger("ddl")

KINDS = Participant.KINDS  #: what the store says to a participant

_STORE_SECONDS = 5.0  # to connect to a store that was elected


@dataclass(frozen=True)
class Effects:
    """What the pump has the rest of the process do."""

    to_store: Callable[[Message], None]  #: send to the store; raises PeerLost
    to_member: Callable[[int, Message], None]  #: call a member; blocks, raises Error or OSError
    #: Connect to the store at an address (of several, with commas between them, one that works), in so many seconds,
    #: and use it if it is still wanted then; blocks, raises. Returns how to ask whether that connection has ended.
    follow: Callable[[str, float, Callable[[], bool]], Callable[[], bool]]
    break_all: Callable[[str, str], None]  #: fail all communicators: the kind of error, and why


class Source(Protocol):
    """What gives the job's state to processes that join."""

    def serve(self, sock: socket.socket) -> None:
        """Send what the process at the other end of ``sock`` asks for. Blocking; in a thread of its own."""

    def close(self) -> None:
        """End that. Idempotent."""


class Generations:
    """The generations of a job as this process goes through them. Any thread may call."""

    def __init__(
        self,
        participant: Participant,
        cell: SharedCell,
        limits: ElasticLimits,
        secret: bytes,
        own_addresses: Sequence[str],
        encrypt: bool,
        host_timeout: float,
    ) -> None:
        self.limits = limits
        self.server: Optional[StoreServer] = None  #: the job's store, if this process was elected to have it
        self.source: Optional[Source] = None  #: the state of the script, once it can give it
        self._participant = participant
        self._secret = secret
        self._encrypt = encrypt
        self._host_timeout = host_timeout
        #: Of this host, the best one first, for a store that this process may have to serve.
        self.own_addresses = own_addresses
        self._effects: Optional[Effects] = None
        self._cells: Dict[int, SharedCell] = {participant.incarnation: cell}  # also of the ranks of this host
        self._changed = threading.Condition()
        #: The last generation that the script was told of; a newcomer is in none yet.
        self._record: Optional[GenerationRecord] = None if participant.newcomer else participant.record
        self._went: Optional[Tuple[int, List[Any]]] = None
        self._closed = False

    @classmethod
    def of(
        cls,
        watch: WatchClient,
        host_id: str,
        secret: bytes,
        own_addresses: Sequence[str],
        newcomer: bool,
        encrypt: bool,
    ) -> Generations:
        """Return the generations of ``watch``'s process. ``ConfigError`` where the job's ranks cannot change."""
        told = watch.elastic
        if told is None:
            raise ConfigError(
                "DDL_ELASTIC=1, but the job's store was started without it; set it for ddlrun (--min-np does), or for "
                "all ranks of another launcher's job"
            )
        record, ballot = GenerationRecord.parse(told["record"]), BallotNumber.parse(told["ballot"])
        cell = SharedCell.create(VoteCell(record, ballot))
        limits = ElasticLimits(**told["limits"])
        participant = Participant(
            watch.rank,
            host_id,
            cell,
            newcomer=newcomer,
            patience=limits.patience,
            host_timeout=watch.host_timeout,
            store=ballot,
        )
        return cls(participant, cell, limits, secret, own_addresses, encrypt, watch.host_timeout)

    # --- for the agent (its thread) ---

    def begin(self, effects: Effects) -> None:
        """The connection to the store is there."""
        self._effects = effects
        self._do(lambda machine, now: machine.connected(now))

    def heard(self, message: Message) -> None:
        """The store said something."""
        self._do(lambda machine, now: machine.heard(message, now))

    def heard_member(self, sender: int, message: Message) -> None:
        """Another member said something. ``ProtocolError`` if it makes no sense."""
        self._do(lambda machine, now: machine.heard_member(sender, message, now))

    def store_lost(self) -> None:
        """The connection to the store has ended."""
        log.debug("process %d: the store is lost", self._participant.incarnation)
        self._do(lambda machine, now: machine.store_lost(now))

    def died(self, incarnation: int) -> None:
        """The process of a rank on this host has ended, for certain."""
        cell = self._cells.get(incarnation)
        if cell is not None:
            why = f"its process ended (seen by rank {self._participant.incarnation} on its host)"
            self._do(lambda machine, now: machine.certain_death(incarnation, cell, why, now))

    def neighbour(self, incarnation: int, cell_fd: int) -> None:
        """A rank of this host has passed its vote cell."""
        with self._changed:
            if incarnation in self._cells or self._closed:
                os.close(cell_fd)
            else:
                self._cells[incarnation] = SharedCell(cell_fd)

    def serve_state(self, sock: socket.socket) -> None:
        """A process that joins asks for the state. Blocking; in the thread of its connection."""
        source = self.source
        if source is None or self._closed:
            send_frame(sock, {"finished": 0, "changing": True})  # this rank's script has not come so far, or ends
        else:
            source.serve(sock)

    def tick(self) -> None:
        """Time has passed."""
        self._do(lambda machine, now: machine.tick(now))

    def patience(self) -> float:
        """Return in how many seconds ``tick`` has something to do."""
        deadline = self._participant.next_deadline()
        return 60.0 if deadline is None else max(0.0, deadline - clock.now()) + 0.001

    # --- for the script (its thread) ---

    @property
    def record(self) -> GenerationRecord:
        """The last generation that this process knows to be decided."""
        return self._participant.record

    @property
    def own_cell(self) -> SharedCell:
        """What the ranks of this host are passed."""
        return self._cells[self._participant.incarnation]

    @property
    def stop_is_planned(self) -> bool:
        """Whether ranks are to join or leave between two steps, now or soon. Costs nothing."""
        return self._participant.stop.is_planned

    @property
    def is_held(self) -> bool:
        """Whether the script waits for the store before a step, or had to before the one that it is in."""
        return self._participant.is_held

    def step_finished(self, finished: int) -> bool:
        """Note that the script has finished so many steps; whether it must go to the next generation now. Blocking.

        It waits only when a change is planned: until it is known where to stop.
        """
        machine = self._participant
        with self._changed:  # so that what the store was told, and what the script does next, agree
            machine.stop.finished = finished
            if not machine.stop.is_planned:
                return False
            record = self._record
        self._do(lambda machine, now: machine.step_finished(finished))

        def settled() -> bool:
            return self._record is not record or machine.stop.is_reached or machine.stop.may_begin or bool(self._over)

        with self._changed:
            if not self._changed.wait_for(settled, self.limits.patience):
                raise RendezvousError(f"the store has not said where to stop for {self.limits.patience:g} s")
            return self._record is not record or machine.stop.is_reached or bool(self._over)

    def next_record(self, after: int, timeout: Optional[float]) -> GenerationRecord:
        """Return the generation that follows ``after``, once it is decided. Blocking; ``timeout`` None: without limit.

        Raises ``LeftOut`` where this process is left out or the job ends, ``RendezvousError`` when time is over.
        """
        self._do(lambda machine, now: machine.wants_next(after))
        with self._changed:
            if not self._changed.wait_for(lambda: self._generation > after or self._over, timeout):
                raise RendezvousError(
                    f"no generation after number {after} was formed within {timeout:g} s; see what the store's process "
                    "printed"
                )
            self._check()
            assert self._record is not None
            return self._record

    @property
    def _generation(self) -> int:
        return -1 if self._record is None else self._record.generation

    def install(self, record: GenerationRecord, value: str, timeout: float) -> Optional[List[Tuple[int, str]]]:
        """Say that this process is ready for ``record``; return each member and its value once all are. Blocking.

        None: another generation follows already. Raises as ``next_record``.
        """
        self._do(lambda machine, now: machine.installed(record.generation, value))

        def decided() -> bool:
            went = self._went is not None and self._went[0] >= record.generation
            return went or self._generation > record.generation or bool(self._over)

        with self._changed:
            if not self._changed.wait_for(decided, timeout):
                raise RendezvousError(
                    f"the other ranks of generation {record.generation} have not come within {timeout:g} s"
                )
            if self._went is None or self._went[0] != record.generation:
                self._check()
                return None
            return [(int(member), str(said)) for member, said in self._went[1]]

    def caught_up(self) -> None:
        """A newcomer has what it needs to be a member."""
        self._do(lambda machine, now: machine.caught_up())

    def forget(self, incarnation: int) -> None:
        """A rank of this host is in no generation any more, and was never to vote again."""
        with self._changed:
            self._participant.forget(incarnation)
            cell = self._cells.pop(incarnation, None)
            if cell is not None:
                cell.close()

    def close(self) -> None:
        """Let go of the cells. Idempotent."""
        with self._changed:
            self._closed = True
            for cell in self._cells.values():
                cell.close()
            self._cells.clear()
            self._changed.notify_all()
        if self.source is not None:
            self.source.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: let go of what is the parent's. Takes no lock: a thread not here may hold it."""
        self._closed = True
        for cell in self._cells.values():
            cell.close()
        if self.server is not None:
            self.server.close_in_child()

    @property
    def _over(self) -> str:
        return "the process leaves the job" if self._closed else self._participant.over

    def _check(self) -> None:
        if self._over:
            raise LeftOut(f"this process is in the job no more: {self._over}", asked=self._participant.asked_to_leave)

    # --- what the machine wants ---

    def _do(self, step: Callable[[Participant, float], Outgoing]) -> None:
        with self._changed:
            if self._closed or self._effects is None:
                return
            try:
                outgoing = step(self._participant, clock.now())
                for cell in self._cells.values():
                    cell.release()
            except ProtocolError:
                raise  # what somebody has said makes no sense, and has had no effect
            except Exception as error:  # a rank that does not know what it has said must not say more
                self._participant.over = f"a bug in DDL: {type(error).__name__}: {error}"
                self._effects.break_all("InternalError", self._participant.over)
                self._changed.notify_all()
                raise
            for destination, message in outgoing:
                self._deliver(destination, message)
            self._changed.notify_all()

    def _deliver(self, destination: int, message: Message) -> None:
        effects = self._effects
        assert effects is not None
        if destination == STORE:
            try:
                effects.to_store(message)
            except (OSError, Error) as error:  # the agent sees the end of the connection, and says so
                log.debug("could not tell the store: %s", error)
        elif destination == SELF:
            self._act(effects, message)
        else:
            self._in_a_thread("ddl-elect", lambda: effects.to_member(destination, message))

    def _act(self, effects: Effects, message: Message) -> None:
        kind = message["type"]
        log.debug("process %d: %s", self._participant.incarnation, message)
        if kind == "break":
            effects.break_all("Aborted", message["reason"])
        elif kind == "generation":
            self._record = GenerationRecord.parse(message["record"])
        elif kind == "go":
            self._went = (message["generation"], message["values"])
        elif kind in ("left_out", "end"):
            effects.break_all("Aborted", f"this process is in the job no more: {message['reason']}")
        elif kind == "serve":
            self._in_a_thread("ddl-serve", lambda: self._serve(message))
        elif kind == "follow":
            ballot = BallotNumber.parse(message["ballot"])
            self._in_a_thread("ddl-follow", lambda: self._follow(effects, ballot, message["address"]))
        else:
            raise InternalError(f"a participant wants {kind!r}, which its process does not know")

    def _serve(self, message: Message) -> None:
        """Begin the store that this process was elected to have."""
        record, ballot = GenerationRecord.parse(message["record"]), BallotNumber.parse(message["ballot"])
        known = self.own_addresses
        server = StoreServer(
            self._secret,
            max(record.members) + 1,
            known[0] if is_loopback(known[0]) else EVERYWHERE,
            elastic=self.limits,
            witness=False,
            succeeds=(record, ballot, bool(message["interrupted"])),
            encrypt=self._encrypt,
            host_timeout=self._host_timeout,
        )
        with self._changed:
            before, self.server = self.server, server
        if before is not None:
            before.close()
        _, port = parse_address(server.address)
        addresses = ",".join(format_address(address, port) for address in known)
        log.info("this process serves the job's store now, at %s", addresses)
        self._do(lambda machine, now: machine.serving(addresses, now))

    def _follow(self, effects: Effects, ballot: BallotNumber, address: str) -> None:
        def wanted() -> bool:  # not if another store was elected meanwhile
            return self._participant.last_store[:2] == ballot[:2]

        try:
            is_over = effects.follow(address, _STORE_SECONDS, wanted)
        except (OSError, Error) as error:
            log.info("the store at %s cannot be reached: %s", address, error)
            self._do(lambda machine, now: machine.not_connected(now) if wanted() else [])
            return

        def followed(machine: Participant, now: float) -> Outgoing:
            if not wanted():
                return []
            # The agent may have told of its end already; it must not count as there after that.
            return machine.not_connected(now) if is_over() else machine.connected(now)

        self._do(followed)

    @staticmethod
    def _in_a_thread(name: str, action: Callable[[], None]) -> None:
        def run() -> None:
            try:
                action()
            except (OSError, Error) as error:
                log.debug("%s: %s", name, error)

        threading.Thread(target=run, name=name, daemon=True).start()
