"""Decides which rank has failed: one verdict per communicator, the same for all ranks.

When a rank dies, most ranks only see consequences: a connection closed by a rank that itself gave up, an operation
that makes no progress. So no rank decides alone. Each tells the store what it suspects, and this state machine
makes the verdict: the first failure that concerns a communicator is its verdict for ever (the numbers of communicators
are never used twice in a job). Communicator -1 stands for all that have the lost rank: others go on, and may lose
another rank later. A rank that leaves after a failure in one communicator is lost for the others, too: their error
tells of that failure. It does no I/O and has no clock: the store's server (ddl/store/server.py, its only thread) brings
events and the time, and delivers the messages that come back.

In messages, "rank" is the number of a process, which is its rank in the job's first generation. Where ranks come and go
(membership/), texts name it by its present rank: see ``renumber``.

Messages are JSON objects. A rank sends ``bye`` [submitted: {comm: n}]; ``suspect`` comm, seq, kind (lost | stalled),
peer, reason, op, final [members: ranks, waits, doing, seconds, shortage, awaits_gpu, unheard]; ``fail`` comm, kind (an
error class), culprit, reason [members]; ``state`` probe, submitted (-1: no member), op [waits, doing, shortage,
awaits_gpu, held, unheard]. It is sent ``fail``, ``probe`` (probe, comm, seq), ``stall`` (comm, seq, seconds, others,
text) and ``departed`` (comm, peer: it has said goodbye; a rank that waits for its message is to look whether it comes).
Operations count from 1; messages have number 0, and a rank that waits for one from any rank names no peer (-1). ``op``
is a text that says what the rank called as number seq, "" if it is not known; ``waits`` and ``doing`` are those of
deadlock.py; ``seconds`` how long the rank has waited, as it has said, and ``others`` how many wait besides;
``shortage`` what it lacks to make connections; ``unheard`` the ranks to which nothing of this one gets through; a rank
that is ``held`` waits until the store has said where all stop (membership/planned_stop.py), or is late as it had to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from ddl.errors import ProtocolError
from ddl.store.deadlock import Deadlocks
from ddl.store.explanation import divide, explain, mismatch
from ddl.store.inquiry import Inquiry, checked_state, checked_suspicion
from ddl.store.messages import Message, Outgoing, integer, text
from ddl.text.rank_names import FEW, name_ranks

__all__ = ["ALL", "DOUBT_GRACE", "JobVerdicts", "LOST_GRACE", "PROBE_GRACE", "REPEAT", "TELL_AFTER"]

ALL = -1  #: the communicator number that means every communicator
LOST_GRACE = 0.2  #: seconds that a suspected rank has to turn out dead before it is called unreachable
PROBE_GRACE = 0.25  #: seconds that ranks have to answer a probe
DOUBT_GRACE = 1.0  #: more seconds, before anybody is blamed, for ranks that answered the probes before this one
TELL_AFTER = 5.0  #: seconds of waiting before a rank says so: first steps, and some others, take seconds in any job
REPEAT = 8.0  #: seconds until a rank may be told again that an operation waits; ranks ask every 10
_CAUSE_LIMIT = 1000  #: characters of a failure that another one tells of

_Key = Tuple[int, int]


@dataclass
class _Suspicion:
    """A rank is said to be lost; it has until ``deadline`` to leave by itself."""

    reason: str
    deadline: float


@dataclass(frozen=True)
class _Goodbye:
    """What a rank that left had submitted, by communicator, and why those who wait for it wait in vain."""

    submitted: Dict[str, Any]
    reason: str


class JobVerdicts:
    """The verdicts of a job of ``size`` ranks. Events go in, messages to ranks come out. Used by one thread.

    ``host_of`` tells two hosts of ranks apart. ``apart_after``: seconds after which ranks say that they do not hear one
    another.

    Messages of ranks have been authenticated but not checked: a malformed one raises ProtocolError and has no
    effect.
    """

    def __init__(self, size: int, host_of: Callable[[int], str] = str, apart_after: float = 10.0) -> None:
        self._host_of = host_of
        self._apart_after = apart_after
        self.first_failure: Optional[Message] = None  #: the job's first verdict; any thread may read it
        self._size = size
        self._present: Set[int] = set()
        self._departed: Dict[int, _Goodbye] = {}
        self._failures: Dict[int, Message] = {}  # by communicator
        self._lost: Dict[int, Message] = {}  # failures of all communicators that have a rank, by rank; -1: of every one
        self._verdicts: List[Message] = []  # all of them, in their order
        self._numbers: Dict[int, int] = {}  # what the ranks of now are called, where that is not their number
        self.blamed: List[Tuple[int, str]] = []  #: ranks that were taken for lost, and why; the caller takes them away
        self._groups: Dict[int, FrozenSet[int]] = {}  # the ranks of communicators that somebody complained about
        self._suspicions: Dict[_Key, _Suspicion] = {}  # by (communicator, suspected rank)
        self._rounds: Dict[_Key, Inquiry] = {}  # by (communicator, operation)
        self._deadlocks = Deadlocks()
        self._told_of: Dict[int, Tuple[int, float]] = {}  # by communicator: of which stall a rank was told, and when
        self._probes = 0
        # Rank -> the first probe that it owes an answer to; it has said nothing since.
        self._silent: Dict[int, int] = {}

    @property
    def present(self) -> bool:
        """Whether any rank is there; any thread may ask."""
        return bool(self._present)

    def is_present(self, rank: int) -> bool:
        """Whether ``rank`` is there: it has joined, and neither left nor died."""
        return rank in self._present

    def renumber(self, members: Sequence[int]) -> None:
        """Call the processes ``members`` ranks 0, 1, ... in texts from now on."""
        self._numbers = {member: rank for rank, member in enumerate(members)}
        self._size = max(self._size, *(member + 1 for member in members))

    def _names(self, ranks: Iterable[int]) -> str:
        return name_ranks(sorted(self._numbers.get(rank, rank) for rank in ranks), FEW)

    def joined(self, rank: int, now: float) -> Outgoing:
        """A rank opened its watch connection; it is told at once what failed before it came."""
        self._present.add(rank)
        self._size = max(self._size, rank + 1)
        self._departed.pop(rank, None)
        out: Outgoing = [(rank, failure) for failure in self._verdicts]
        # A store that was elected may be asked about a rank that is still on its way to it.
        return out + [(rank, p.question(*key)) for key, p in self._rounds.items() if rank in p.waiting]

    def dropped(self, rank: int, now: float, reason: str = "") -> Outgoing:
        """A rank's watch connection is gone; without a goodbye before, its process is dead."""
        if rank not in self._present:
            return []
        self._present.discard(rank)
        self._deadlocks.forget(rank)
        return self._fail(ALL, "PeerLost", rank, reason or "its process ended (connection closed without goodbye)")

    def lost(self, rank: int, reason: str) -> Outgoing:
        """Somebody else has found out that a rank is gone, or must not go on."""
        return [] if rank in self._departed else self._fail(ALL, "PeerLost", rank, reason)

    def received(self, rank: int, message: Message, now: float) -> Outgoing:
        """A rank sent a message; ProtocolError if it is not one of the watch protocol."""
        self._silent.pop(rank, None)
        kind = message.get("type")
        if kind == "bye":
            return self._bye(rank, message, now)
        if kind == "suspect":
            return self._suspect(rank, message, now)
        if kind == "fail":
            return self._told(rank, message)
        if kind == "state":
            return self._state(rank, message, now)
        raise ProtocolError(f"rank {rank} sent the store a message of unknown type {kind!r:.100}")

    def tick(self, now: float) -> Outgoing:
        """Time has passed: decide what has waited long enough."""
        out: Outgoing = []
        for (comm, peer), suspicion in list(self._suspicions.items()):
            if suspicion.deadline <= now and (comm, peer) in self._suspicions:
                out += self._fail(comm, "PeerLost", peer, suspicion.reason)
        for key, probing in list(self._rounds.items()):
            if probing.deadline <= now and key in self._rounds and not self._extended(probing, now):
                out += self._judge(key, now)
        return out

    def _extended(self, probing: Inquiry, now: float) -> bool:
        """Give ranks more time, once, if somebody would be blamed and one is silent that was not before.

        A rank that is stopped has been silent in an earlier round, too. One that has much to do is only late, and
        silence would have made it the culprit in place of the rank that all wait for.
        """
        owing = probing.waiting - self._departed.keys()
        for rank in owing:
            self._silent.setdefault(rank, probing.probe)
        doubtful = any(self._silent[rank] == probing.probe for rank in owing)
        if not doubtful or not probing.final or probing.extended:
            return False
        probing.extended = True
        probing.deadline = now + DOUBT_GRACE
        return True

    def _silent_since(self, rank: int) -> int:
        """Return the first probe that ``rank`` owes an answer to."""
        return self._silent.get(rank, self._probes + 1)

    def next_deadline(self) -> Optional[float]:
        """When ``tick`` has something to do; None if nothing is waiting."""
        waiting = [s.deadline for s in self._suspicions.values()] + [r.deadline for r in self._rounds.values()]
        return min(waiting, default=None)

    def _bye(self, rank: int, message: Message, now: float) -> Outgoing:
        submitted = message.get("submitted", {})
        if not isinstance(submitted, dict):
            raise ProtocolError(f"rank {rank}: 'submitted' of a goodbye is {submitted!r:.100}, not an object")
        self._present.discard(rank)
        self._deadlocks.forget(rank)
        self._departed[rank] = _Goodbye(submitted, _LEFT + self._known_to(rank))
        out: Outgoing = []
        for comm, peer in list(self._suspicions):
            if peer == rank and (comm, peer) in self._suspicions:
                out += self._fail(comm, "PeerLost", rank, self._departed[rank].reason)
        for key, probing in list(self._rounds.items()):
            probing.waiting.discard(rank)
            if not probing.waiting and key in self._rounds:
                out += self._judge(key, now)
        return out

    def _known_to(self, rank: int) -> str:
        """Tell of a failure that ``rank`` knew of when it left: its program may have ended because of that."""
        for comm, failure in self._failures.items():
            if rank in self._groups.get(comm, ()):
                subject = f"{self._names([failure['culprit']])}: " if failure["kind"] == "PeerLost" else ""
                return (
                    f" after the communicator of {self._names(self._groups[comm])} had failed: "
                    f"{failure['kind']}: {subject}{failure['reason'][:_CAUSE_LIMIT]}"
                )
        return ""

    def _suspect(self, rank: int, message: Message, now: float) -> Outgoing:
        comm = integer(rank, message, "comm", low=0)
        kind = message.get("kind")
        members = self._members(rank, message)
        if kind == "lost":
            peer = integer(rank, message, "peer", low=0, high=self._size - 1)
            reason = text(rank, message, "reason")
            if self._decided(comm, members):
                return []
            self._groups[comm] = members
            if peer in self._departed:
                return self._fail(comm, "PeerLost", peer, self._departed[peer].reason)
            self._suspicions.setdefault((comm, peer), _Suspicion(reason, now + LOST_GRACE))
            return []
        if kind != "stalled":
            raise ProtocolError(f"rank {rank} sent a suspicion of unknown kind {kind!r:.100}")
        seq = integer(rank, message, "seq", low=0)
        suspect = checked_suspicion(rank, message, self._size)
        if self._decided(comm, members):
            return []
        self._groups[comm] = members
        if seq == 0 and suspect["peer"] < 0 and not suspect["awaits_gpu"]:  # for a message from any rank
            gone = sorted(members & self._departed.keys())
            return [(rank, {"type": "departed", "comm": comm, "peer": peer}) for peer in gone]
        return self._stalled(rank, comm, seq, suspect, members, now)

    def _stalled(
        self, rank: int, comm: int, seq: int, suspect: Message, members: FrozenSet[int], now: float
    ) -> Outgoing:
        key = (comm, seq)
        out: Outgoing = []
        probing = self._rounds.get(key)
        # What ranks said before a deadline counts no more when it has come: they may have called it meanwhile.
        overtaken = probing is not None and suspect["final"] and not probing.final
        if probing is None or overtaken:
            known = {} if probing is None else probing.suspects
            self._probes += 1
            probing = Inquiry(self._probes, members, now + PROBE_GRACE, rank, suspects=dict(known))
            probing.waiting = set(members - self._departed.keys() - self._lost.keys() - {rank} - known.keys())
            self._rounds[key] = probing
            question = probing.question(comm, seq)
            out = [(asked, question) for asked in sorted(probing.waiting & self._present)]
        probing.suspects[rank] = suspect
        self._deadlocks.heard(rank, suspect["waits"], suspect["doing"])
        probing.waiting.discard(rank)  # who complains is alive, and has said what it called
        return out if probing.waiting else out + self._judge(key, now)

    def _state(self, rank: int, message: Message, now: float) -> Outgoing:
        probe = integer(rank, message, "probe", low=0)
        state = checked_state(rank, message)
        for key, probing in self._rounds.items():
            if probing.probe == probe and rank in probing.waiting:
                probing.states[rank] = state
                probing.waiting.discard(rank)
                uncalled = key if 0 <= state["submitted"] < key[1] else None
                self._deadlocks.heard(rank, state["waits"], state["doing"], uncalled)
                return [] if probing.waiting else self._judge(key, now)
        return []  # an answer that came too late

    def _told(self, rank: int, message: Message) -> Outgoing:
        comm = integer(rank, message, "comm", low=ALL)
        culprit = integer(rank, message, "culprit", low=-1, high=self._size - 1)
        kind, reason = text(rank, message, "kind"), text(rank, message, "reason")
        members = self._members(rank, message)
        if comm != ALL and not self._decided(comm, members):
            self._groups[comm] = members
        return self._fail(comm, kind, culprit, reason)

    def _members(self, rank: int, message: Message) -> FrozenSet[int]:
        members = message.get("members")
        if members is None:
            return frozenset(range(self._size))
        if not isinstance(members, list) or not all(type(m) is int and 0 <= m < self._size for m in members):
            raise ProtocolError(f"rank {rank}: 'members' of a suspicion is {members!r:.100}, not a list of ranks")
        return frozenset(members)

    def _judge(self, key: _Key, now: float) -> Outgoing:
        """Decide a round of questions. Mismatches and dead ranks always count, slow ones only at the deadline."""
        comm, seq = key
        probing = self._rounds.pop(key)
        # Send and recv are not numbered (0): what others are in says nothing about them.
        different = mismatch(probing.operations(), seq, self._names) if seq != 0 else ""
        if different:
            return self._fail(comm, "CollectiveMismatch", -1, different)
        if seq == 0 and not probing.final:
            # What it sent before may still be on its way. Whether it comes is for the rank that waits to see.
            waiting = sorted((rank, suspect["peer"]) for rank, suspect in probing.suspects.items())
            waiting = [(rank, peer) for rank, peer in waiting if peer in self._departed and rank in self._present]
            if waiting:
                return [(rank, {"type": "departed", "comm": comm, "peer": peer}) for rank, peer in waiting]
        late = (suspect["peer"] for suspect in probing.suspects.values() if suspect["final"])
        needed = probing.members if seq != 0 else frozenset(late)
        for rank in sorted(needed & self._departed.keys()):
            if not _had_submitted(self._departed[rank].submitted, comm, seq):
                return self._fail(comm, "PeerLost", rank, self._departed[rank].reason)
        stuck = [rank for rank in self._deadlocks.stuck() if rank in self._present]
        refusal = self._refuse_deadlock(stuck) if stuck else []
        if refusal:
            return refusal
        hosts = {rank: self._host_of(rank) for rank in probing.members}
        given_up = divide(probing.apart(), hosts, self._names, self._apart_after)
        if given_up:
            (culprit, reason), *mates = given_up.items()
            out = self._fail(comm, "PeerLost", culprit, reason)
            self.blamed += mates if out else []
            return out
        culprit, reason = explain(probing, seq, self._departed, self._silent_since, self._names)
        if probing.final:
            return self._fail(comm, "CollectiveTimeout", culprit, reason)
        if culprit < 0:
            return []  # all are at it: the data takes its time, and nobody is to blame
        return self._tell_of_stall(key, probing, reason, now)

    def _refuse_deadlock(self, stuck: List[int]) -> Outgoing:
        """Ranks wait for one another in different communicators: fail all of these, with the same words."""
        reason = self._deadlocks.text(stuck, self._names)
        out: Outgoing = []
        for comm in self._deadlocks.communicators(stuck):
            out += self._fail(comm, "CollectiveMismatch", -1, reason)
        for rank in stuck:
            self._deadlocks.forget(rank)  # it has been told
        return out

    def _tell_of_stall(self, key: _Key, probing: Inquiry, reason: str, now: float) -> Outgoing:
        """Now and then, have one rank say what is waited for; for a message, each that waits: others do not know it."""
        comm, seq = key
        long = [rank for rank, suspect in probing.suspects.items() if suspect["seconds"] >= TELL_AFTER]
        waiting = [rank for rank in sorted(long) if rank in self._present]
        if seq != 0:
            told_of, when = self._told_of.get(comm, (0, now))
            if not waiting or (told_of == seq and now < when + REPEAT):
                return []
            self._told_of[comm] = seq, now
            del waiting[1:]
        called = probing.suspects.keys() | {r for r, state in probing.states.items() if state["submitted"] >= seq > 0}
        stall = {"type": "stall", "comm": comm, "seq": seq, "others": len(called) - 1, "text": reason}
        return [(rank, {**stall, "seconds": probing.suspects[rank]["seconds"]}) for rank in waiting]

    def _decided(self, comm: int, members: FrozenSet[int]) -> bool:
        return comm in self._failures or ALL in self._lost or not members.isdisjoint(self._lost)

    def _fail(self, comm: int, kind: str, culprit: int, reason: str) -> Outgoing:
        failures, key = (self._lost, culprit) if comm == ALL else (self._failures, comm)
        if key in failures or ALL in self._lost or (comm != ALL and self._decided(comm, self._members_of(comm))):
            return []
        failure = {"type": "fail", "comm": comm, "kind": kind, "culprit": culprit, "reason": reason}
        failures[key] = failure
        self._verdicts.append(failure)
        self.first_failure = self.first_failure or failure
        if culprit >= 0:
            self.blamed.append((culprit, reason))
        for pending in (self._suspicions, self._rounds):
            for waiting in list(pending):
                if waiting[0] == comm or (comm == ALL and (culprit < 0 or culprit in self._members_of(waiting[0]))):
                    del pending[waiting]
        return [(rank, failure) for rank in sorted(self._present)]

    def _members_of(self, comm: int) -> FrozenSet[int]:
        return self._groups.get(comm) or frozenset(range(self._size))


_LEFT = "it has shut down (its program ended)"


def _had_submitted(submitted: Dict[str, Any], comm: int, seq: int) -> bool:
    number = submitted.get(str(comm), -1)
    return isinstance(number, int) and seq != 0 and number >= seq
