"""A rank's side of ranks that come and go: it votes, follows the store, and tells the script what to do.

Inputs are what the store and other members say, the loss of the store, deaths that are certain, and what the script
does. Outputs are messages: to the store (``STORE``), to members (their incarnations), and to this process itself
(``SELF``), which are:

``break`` (reason)
    its communicators are over: it has accepted that there will be another generation;
``generation`` (record)
    what is decided: make its communicators, then call ``installed``;
``go`` (generation, values)
    all members have: go on;
``left_out`` (reason) and ``end`` (reason)
    this process, or the whole job, cannot go on;
``serve`` (ballot, record, interrupted)
    this member was elected: begin a store, then call ``serving``;
``follow`` (ballot, address)
    connect to that store, then call ``connected``.

This state machine does no I/O and has no clock. Messages have been authenticated but not checked: a malformed one
raises ``ProtocolError`` and has no effect.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ddl.errors import ProtocolError
from ddl.net.address import HOST_TIMEOUT
from ddl.store.membership.acceptor import Acceptor, VoteCell
from ddl.store.membership.election import ELECTION_GRACE, Election, cut_off_after
from ddl.store.membership.member_stop import MemberStop
from ddl.store.membership.records import FIRST_BALLOT, BallotNumber, GenerationRecord, ballot_of, record_of
from ddl.store.messages import Message, Outgoing, integer, text

__all__ = ["SELF", "STORE", "Participant"]

STORE = -2  #: where a message goes: to the store that this member is connected to
SELF = -3  #: to this process

_VOTES = ("prepare", "accept")


class Participant:
    """What member ``incarnation`` on ``host`` knows and says. Used by one thread at a time.

    ``cell`` has the generation that the job began with, or for a newcomer (``newcomer``) what it was told of it.
    ``patience``: seconds that it waits for a new store, and for what is decided. ``host_timeout``: seconds that a host
    may be silent. ``store``: the one it connects to.
    """

    def __init__(
        self,
        incarnation: int,
        host: str,
        cell: VoteCell,
        *,
        newcomer: bool = False,
        patience: float = 600.0,
        host_timeout: float = HOST_TIMEOUT,
        store: BallotNumber = FIRST_BALLOT,
    ) -> None:
        self.incarnation = incarnation
        self.host = host
        self.store: Optional[BallotNumber] = store  #: the store that it is connected to; None: gone
        self.over = ""  #: why this process cannot go on
        self.asked_to_leave = False  #: that is why
        self.stop = MemberStop(incarnation)  #: where its script stops for a planned change
        self._own = Acceptor(incarnation, cell)
        self._acceptors = {incarnation: self._own}  # and those of the dead for whom it votes
        self.newcomer = newcomer  #: it is in no generation yet
        self._patience = patience
        self._cut_off = cut_off_after(host_timeout)  # seconds
        self.last_store = store  #: the election of the store that it follows
        self._address = ""  # of the store
        self._told = -1 if newcomer else cell.record.generation  # the last generation that SELF was told of
        self._broken = -1  # the last generation whose communicators are over
        self._ready: Optional[int] = None
        self._installed: Optional[Message] = None
        self._caught_up = False
        self._went: Optional[List[Any]] = None if newcomer else []  # what ``go`` brought, of the present generation
        self._dead: Dict[int, str] = {}
        self._election: Optional[Election] = None
        self._until: Optional[float] = None  # when it gives up to wait for a store
        self._following = False  # it connects to a store, and no end of a connection was seen since
        self._connecting = False  # it connects to a store
        self._reached = True  # it was connected to the last store that it followed
        self._serving: Optional[BallotNumber] = None  # it was elected, and its store is not there yet

    @property
    def record(self) -> GenerationRecord:
        """The last generation that it knows to be decided."""
        return self._own.cell.record

    # --- the connection to the store ---

    def connected(self, now: float) -> Outgoing:
        """Its connection to the store that it follows is there: tell what that store must know."""
        self.store, self._until, self._election = self.last_store, None, None
        self._following, self._connecting, self._reached = False, False, True
        here: Message = {"type": "here", "host": self.host, "record": self.record.message(), "newcomer": self.newcomer}
        if self._went is not None and self._told == self.record.generation and self.last_store != FIRST_BALLOT:
            here["went"] = self._went
        out: Outgoing = [(STORE, here)]
        out += [(STORE, {"type": "died", "incarnation": dead, "why": why}) for dead, why in self._dead.items()]
        if self._caught_up and self.newcomer:
            out.append((STORE, {"type": "caught_up"}))
        if self._installed is not None:
            out.append((STORE, self._installed))
        if self._ready is not None:
            out.append((STORE, {"type": "ready", "generation": self._ready}))
        return out

    def not_connected(self, now: float) -> Outgoing:
        """The connection to the store that it follows could not be made."""
        if not self._connecting:
            return []
        self._connecting = False
        return self.store_lost(now)

    def store_lost(self, now: float) -> Outgoing:
        """The connection to the store is closed."""
        if self.over or self._election is not None:
            return []
        self.store = None
        self.stop.drop()
        self._until = self._until or now + self._patience
        # Perhaps it is the store before that has ended, while this member connects to the next one.
        first = now + ELECTION_GRACE if self._following else now
        self._election = Election(self.incarnation, self._acceptors, self.last_store, now, first, self._cut_off)
        self._following = False
        return self.tick(now)

    def serving(self, address: str, now: float) -> Outgoing:
        """The store that this member was elected to have is at ``address``: tell the members, and connect to it."""
        ballot, self._serving = self._serving, None
        if ballot is None or not self._is_later(ballot):
            return []
        generation = self.record.generation
        elected = {"type": "elected", "ballot": list(ballot), "address": address, "generation": generation}
        others = [member for member in self.record.members if member != self.incarnation]
        return [(member, elected) for member in others] + self._follow(ballot, address)

    def _is_later(self, ballot: BallotNumber) -> bool:
        """Whether that store succeeds the one that this member followed last.

        Epochs alone do not tell: a generation and its successor may each elect a store in one epoch, since their
        quorums need not have a voter in common. The store of the higher owner wins; the other one is refused.
        """
        return ballot[:2] > self.last_store[:2]

    def _may_try_again(self, ballot: BallotNumber, now: float) -> bool:
        """Whether this member has not reached the store that others have: it may have been stopped, and be back."""
        if self._election is None or self._until is None or self._reached or self._connecting:
            return False
        return ballot[:2] == self.last_store[:2] and now - (self._until - self._patience) < 2 * self._cut_off

    def _follow(self, ballot: BallotNumber, address: str) -> Outgoing:
        self.last_store, self._address, self.store, self._election = ballot, address, None, None
        self._following, self._connecting, self._reached = True, True, False
        self.stop.drop()
        return [(SELF, {"type": "follow", "ballot": list(ballot), "address": address})]

    # --- what the store says ---

    def heard(self, message: Message, now: float) -> Outgoing:
        """The store said something. ``ProtocolError`` if it makes no sense."""
        kind = message.get("type")
        if self.over:
            return []
        if kind in _VOTES:
            return self._vote(message)
        if kind == "commit":
            return self._learn(record_of(message, "record"))
        if kind == "go":
            return self._go(message)
        if kind in ("where", "stop_at"):
            return [(STORE, answer) for answer in self.stop.heard(message)]
        if kind == "left_out":
            self.over, self.asked_to_leave = text(self.incarnation, message, "reason"), message.get("asked") is True
            return [(SELF, {"type": "left_out", "reason": self.over})]
        if kind == "superseded":
            return self.store_lost(now)
        if kind == "end":
            self.over = text(self.incarnation, message, "reason")
            return [(SELF, {"type": "end", "reason": self.over})]
        raise ProtocolError(f"the store said {kind!r:.100}, which no member knows")

    #: What ``heard`` understands.
    KINDS = frozenset("prepare accept commit go where stop_at left_out end superseded".split())

    def _vote(self, message: Message) -> Outgoing:
        acceptor = self._acceptors.get(integer(self.incarnation, message, "voter", low=0))
        if acceptor is None:
            return []  # one whose death is not certain here
        before = self.record
        accepting = message["type"] == "accept"
        answer = acceptor.accept(message) if accepting else acceptor.prepare(message)
        out = self._tell_generation() if self.record.generation > before.generation else []
        if answer["type"] == "accepted" and acceptor is self._own and self._broken < self.record.generation:
            self._broken = self.record.generation
            out.append((SELF, {"type": "break", "reason": "the ranks of the job are changing"}))
        return [*out, (STORE, answer)]

    def _learn(self, record: GenerationRecord) -> Outgoing:
        for acceptor in self._acceptors.values():
            acceptor.learn(record)
        return self._tell_generation()

    def _tell_generation(self) -> Outgoing:
        """Tell the script of the generation that is decided, once, if it is in it."""
        record = self.record
        if record.generation <= self._told or self.incarnation not in record.members:
            return []
        self._told, self.newcomer = record.generation, False
        for voter in [v for v in self._acceptors if v not in record.members and v != self.incarnation]:
            del self._acceptors[voter]  # nobody asks for its vote any more
        self._ready, self._installed, self._went = None, None, None
        self.stop.drop()
        return [(SELF, {"type": "generation", "record": record.message()})]

    def _go(self, message: Message) -> Outgoing:
        generation, values = integer(self.incarnation, message, "generation", low=0), message.get("values")
        if not isinstance(values, list):
            raise ProtocolError(f"the store said go with {values!r:.100}, not a list")
        if generation != self._told or generation != self.record.generation or self._went is not None:
            return []
        self._went, self._installed = values, None
        return [(SELF, {"type": "go", "generation": generation, "values": values})]

    # --- what the script does ---

    def step_finished(self, finished: int) -> Outgoing:
        """The script has finished so many steps. ``stop`` tells whether it may begin another one."""
        return [(STORE, message) for message in self.stop.step_finished(finished, self.record.generation)]

    @property
    def is_held(self) -> bool:
        """Whether the script waits for the store, or had to before the step that it is in: others wait for it then.

        Its communicators may be over, and the next generation is not there. Or it waits to begin a step, since the
        store takes long to say where to stop, as it has to wait for a rank that is slow, or stopped.
        """
        generation = self.record.generation
        return self.stop.delays(generation) or self._broken == generation or self._ready is not None

    def wants_next(self, after: int) -> Outgoing:
        """The script's communicators of generation ``after`` are broken, and it wants the next one."""
        if self.over or after != self._told or self._ready == after or after < self.record.generation:
            return []
        self._ready = self._told
        if self.stop.was_told:
            return []  # the store waits for the others to stop, too; a new store would not know
        return self._to_store({"type": "ready", "generation": self._told})

    def installed(self, generation: int, value: str) -> Outgoing:
        """The script has made the communicators of ``generation``; ``value`` is for all members."""
        if generation != self._told or self._went is not None:
            return []
        self._installed = {"type": "installed", "generation": generation, "value": value}
        return self._to_store(self._installed)

    def caught_up(self) -> Outgoing:
        """A newcomer has the state of the job, and can be a member."""
        self._caught_up = True
        return self._to_store({"type": "caught_up"})

    def _to_store(self, message: Message) -> Outgoing:
        return [(STORE, message)] if self.store is not None else []

    # --- deaths and elections ---

    def certain_death(self, incarnation: int, cell: VoteCell, why: str, now: float) -> Outgoing:
        """The process of ``incarnation``, on this host, has ended; ``cell`` is what it had said as a voter."""
        before = incarnation not in self.record.members and incarnation < max(self.record.members)
        if incarnation in self._dead or before:
            return []  # what it said counts no more; a newer process may be in a generation not known here yet
        self._dead[incarnation] = why
        self._acceptors[incarnation] = Acceptor(incarnation, cell)
        if self._election is not None:
            self._election.another(self._acceptors[incarnation])
        return self._to_store({"type": "died", "incarnation": incarnation, "why": why}) + self._after_election(now)

    def forget(self, incarnation: int) -> None:
        """``incarnation`` is in no generation any more, and its cell is gone: vote for it no longer."""
        if incarnation != self.incarnation:
            self._acceptors.pop(incarnation, None)

    def heard_member(self, sender: int, message: Message, now: float) -> Outgoing:
        """Member ``sender`` said something about a new store. ``ProtocolError`` if it makes no sense."""
        kind, ballot = message.get("type"), ballot_of(message)
        if self.over:
            return []
        if kind == "elected":
            address = text(sender, message, "address")
            # Who has been left out may be elected by the dead of its host, and not know it. A member that goes to its
            # store leaves that of its own generation, and would be taken for lost there.
            if integer(sender, message, "generation", low=0) < self.record.generation:
                return []
            return self._follow(ballot, address) if self._is_later(ballot) else []
        if kind == "elect":
            if self._serving is not None:
                return []  # its own store will be there in a moment
            if self._election is None:
                has_store = {"type": "has_store", "ballot": list(self.last_store), "address": self._address}
                return [(sender, {**has_store, "reached": self._reached})]
            before = self.record
            answers = self._election.asked(sender, message, now)
            return [*(self._tell_generation() if self.record.generation > before.generation else []), *answers]
        there = message.get("reached") is True
        if kind == "has_store" and (self._is_later(ballot) or (there and self._may_try_again(ballot, now))):
            return self._follow(ballot, text(sender, message, "address"))
        if kind not in ("promise", "refused", "has_store"):
            raise ProtocolError(f"rank {sender} said {kind!r:.100} about a new store, which no member knows")
        if self._election is None:
            return []
        before = self.record
        self._election.answered(message, now)
        out = self._tell_generation() if self.record.generation > before.generation else []
        return out + self._after_election(now)

    def tick(self, now: float) -> Outgoing:
        """Time has passed."""
        if self.over:
            return []
        out: Outgoing = []
        if self._election is not None:
            out += self._election.tick(now)
            out += self._after_election(now)
        if self._until is not None and self._until <= now and not self.over:
            self._until = None
            self.over = (
                f"the job's store is gone, or cannot be reached from this host, and no other was elected within "
                f"{self._patience:g} s, as there is no majority of ranks here"
            )
            out.append((SELF, {"type": "end", "reason": self.over}))
        return out

    def next_deadline(self) -> Optional[float]:
        """When ``tick`` has something to do; None if nothing is waiting."""
        if self.over:
            return None
        election = self._election.next_deadline() if self._election is not None else None
        return min((deadline for deadline in (election, self._until) if deadline is not None), default=None)

    def _after_election(self, now: float) -> Outgoing:
        election = self._election
        if election is None:
            return []
        if election.cut_off:
            self._election = None
            self.over = "it has lost the job's store, which the other ranks still have (its network is down)"
            return [(SELF, {"type": "left_out", "reason": self.over})]
        if election.won is None:
            return []
        self._election, self._serving = None, election.won
        serve = {"type": "serve", "ballot": list(election.won), "record": self.record.message()}
        return [(SELF, {**serve, "interrupted": election.interrupted})]
