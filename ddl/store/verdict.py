"""Decides which rank has failed: one verdict per communicator, the same for all ranks.

When a rank dies, most ranks only see consequences: a connection closed by a rank that itself gave up, an operation
that makes no progress. So no rank decides alone. Each tells the store what it suspects, and this state machine
makes the verdict: the first failure of a communicator is its verdict for ever (communicator -1 stands for all; the
numbers of communicators are never used twice in a job). A rank that leaves after a failure in one communicator is
lost for the others, too: their error tells of that failure. It does no I/O and has no clock: the store's server
(ddl/store/server.py, its only thread) brings events and the time, and delivers the messages that come back.

Messages are JSON objects. A rank sends ``bye`` [submitted: {comm: n}]; ``suspect`` comm, seq, kind (lost | stalled),
peer, reason, op, final [members: ranks, shortage]; ``fail`` comm, kind (an error class), culprit, reason [members];
``state`` probe, submitted (-1: no member), op [last, shortage]. It is sent ``fail``, ``probe`` (probe, comm, seq),
``stall`` (comm, seq, text) and ``departed`` (comm, peer: it has said goodbye; a rank that waits for its message is to
look whether it comes). Operations count from 1; ``op`` is a text that says what the rank called as number seq, "" if it
is not known; ``shortage`` what the rank lacks to make connections.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple

from ddl.errors import ProtocolError
from ddl.store.messages import Message, Outgoing, integer, text

__all__ = ["ALL", "DOUBT_GRACE", "JobVerdicts", "LOST_GRACE", "PROBE_GRACE", "name_ranks"]

ALL = -1  #: the communicator number that means every communicator
LOST_GRACE = 0.2  #: seconds that a suspected rank has to turn out dead before it is called unreachable
PROBE_GRACE = 0.25  #: seconds that ranks have to answer a probe
DOUBT_GRACE = 1.0  #: more seconds, before anybody is blamed, for ranks that answered the probes before this one
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


@dataclass
class _Inquiry:
    """One round of questions about operation ``seq`` of a communicator."""

    probe: int
    members: FrozenSet[int]
    deadline: float
    asker: int
    waiting: Set[int] = field(default_factory=set)
    suspects: Dict[int, Message] = field(default_factory=dict)
    states: Dict[int, Message] = field(default_factory=dict)
    extended: bool = False  # ranks have got more time to answer

    @property
    def final(self) -> bool:
        return any(suspect["final"] for suspect in self.suspects.values())

    def shortages(self) -> Dict[int, str]:
        """What ranks lack to make connections, of those that lack something."""
        answers = {**self.states, **self.suspects}
        return {rank: answers[rank]["shortage"] for rank in sorted(answers) if answers[rank]["shortage"]}

    def awaiting_gpus(self) -> List[int]:
        """Ranks that wait for their own GPU, which has not brought their data."""
        answers = {**self.states, **self.suspects}
        return [rank for rank in sorted(answers) if answers[rank]["awaits_gpu"]]

    def operations(self) -> Dict[int, str]:
        """What each rank says that it called, where it said so."""
        said = {rank: state["op"] for rank, state in self.states.items() if state["submitted"] >= 0}
        said.update({rank: suspect["op"] for rank, suspect in self.suspects.items()})
        return {rank: op for rank, op in sorted(said.items()) if op}


class JobVerdicts:
    """The verdicts of a job of ``size`` ranks. Events go in, messages to ranks come out. Used by one thread.

    Messages of ranks have been authenticated but not checked: a malformed one raises ProtocolError and has no
    effect.
    """

    def __init__(self, size: int) -> None:
        self.first_failure: Optional[Message] = None  #: the job's first verdict; any thread may read it
        self._size = size
        self._present: Set[int] = set()
        self._departed: Dict[int, _Goodbye] = {}
        self._failures: Dict[int, Message] = {}
        self._groups: Dict[int, FrozenSet[int]] = {}  # the ranks of communicators that somebody complained about
        self._suspicions: Dict[_Key, _Suspicion] = {}  # by (communicator, suspected rank)
        self._rounds: Dict[_Key, _Inquiry] = {}  # by (communicator, operation)
        self._probes = 0
        self._silent: Dict[
            int, int
        ] = {}  # rank -> the first probe that it owes an answer to; it has said nothing since

    @property
    def present(self) -> bool:
        """Whether any rank is there; any thread may ask."""
        return bool(self._present)

    def is_present(self, rank: int) -> bool:
        """Whether ``rank`` is there: it has joined, and neither left nor died."""
        return rank in self._present

    def joined(self, rank: int, now: float) -> Outgoing:
        """A rank opened its watch connection; it is told at once what failed before it came."""
        self._present.add(rank)
        self._departed.pop(rank, None)
        return [(rank, failure) for failure in self._failures.values()]

    def dropped(self, rank: int, now: float, reason: str = "") -> Outgoing:
        """A rank's watch connection is gone; without a goodbye before, its process is dead."""
        if rank not in self._present:
            return []
        self._present.discard(rank)
        return self._fail(ALL, "PeerLost", rank, reason or "its process ended (connection closed without goodbye)")

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
                out += self._judge(key)
        return out

    def _extended(self, probing: _Inquiry, now: float) -> bool:
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

    def next_deadline(self) -> Optional[float]:
        """When ``tick`` has something to do; None if nothing is waiting."""
        waiting = [s.deadline for s in self._suspicions.values()] + [r.deadline for r in self._rounds.values()]
        return min(waiting, default=None)

    def _bye(self, rank: int, message: Message, now: float) -> Outgoing:
        submitted = message.get("submitted", {})
        if not isinstance(submitted, dict):
            raise ProtocolError(f"rank {rank}: 'submitted' of a goodbye is {submitted!r:.100}, not an object")
        self._present.discard(rank)
        self._departed[rank] = _Goodbye(submitted, _LEFT + self._known_to(rank))
        out: Outgoing = []
        for comm, peer in list(self._suspicions):
            if peer == rank and (comm, peer) in self._suspicions:
                out += self._fail(comm, "PeerLost", rank, self._departed[rank].reason)
        for key, probing in list(self._rounds.items()):
            probing.waiting.discard(rank)
            if not probing.waiting and key in self._rounds:
                out += self._judge(key)
        return out

    def _known_to(self, rank: int) -> str:
        """Tell of a failure that ``rank`` knew of when it left: its program may have ended because of that."""
        for comm, failure in self._failures.items():
            if rank in self._groups.get(comm, ()):
                subject = f"rank {failure['culprit']}: " if failure["kind"] == "PeerLost" else ""
                return (
                    f" after the communicator of {name_ranks(sorted(self._groups[comm]))} had failed: "
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
            if self._decided(comm):
                return []
            self._groups[comm] = members
            if peer in self._departed:
                return self._fail(comm, "PeerLost", peer, self._departed[peer].reason)
            self._suspicions.setdefault((comm, peer), _Suspicion(reason, now + LOST_GRACE))
            return []
        if kind != "stalled":
            raise ProtocolError(f"rank {rank} sent a suspicion of unknown kind {kind!r:.100}")
        seq = integer(rank, message, "seq", low=0)
        suspect = {
            "op": text(rank, message, "op"),
            "final": message.get("final") is True,
            "peer": integer(rank, message, "peer", low=-1, high=self._size - 1, default=-1),
            "reason": text(rank, message, "reason", default=""),
            "shortage": text(rank, message, "shortage", default=""),
            "awaits_gpu": message.get("awaits_gpu") is True,
        }
        if self._decided(comm):
            return []
        self._groups[comm] = members
        return self._stalled(rank, comm, seq, suspect, members, now)

    def _stalled(
        self, rank: int, comm: int, seq: int, suspect: Message, members: FrozenSet[int], now: float
    ) -> Outgoing:
        key = (comm, seq)
        out: Outgoing = []
        probing = self._rounds.get(key)
        if probing is None:
            self._probes += 1
            probing = _Inquiry(self._probes, members, now + PROBE_GRACE, rank)
            probing.waiting = (self._present & members) - {rank}
            self._rounds[key] = probing
            question = {"type": "probe", "probe": probing.probe, "comm": comm, "seq": seq}
            out = [(asked, question) for asked in sorted(probing.waiting)]
        probing.suspects[rank] = suspect
        probing.waiting.discard(rank)  # who complains is alive, and has said what it called
        return out if probing.waiting else out + self._judge(key)

    def _state(self, rank: int, message: Message, now: float) -> Outgoing:
        probe = integer(rank, message, "probe", low=0)
        state = {
            "submitted": integer(rank, message, "submitted", low=-1),  # -1: not a member of the communicator
            "op": text(rank, message, "op"),
            "last": text(rank, message, "last", default=""),
            "shortage": text(rank, message, "shortage", default=""),
            "awaits_gpu": message.get("awaits_gpu") is True,
        }
        for key, probing in self._rounds.items():
            if probing.probe == probe and rank in probing.waiting:
                probing.states[rank] = state
                probing.waiting.discard(rank)
                return [] if probing.waiting else self._judge(key)
        return []  # an answer that came too late

    def _told(self, rank: int, message: Message) -> Outgoing:
        comm = integer(rank, message, "comm", low=ALL)
        culprit = integer(rank, message, "culprit", low=-1, high=self._size - 1)
        kind, reason = text(rank, message, "kind"), text(rank, message, "reason")
        members = self._members(rank, message)
        if not self._decided(comm):
            self._groups[comm] = members
        return self._fail(comm, kind, culprit, reason)

    def _members(self, rank: int, message: Message) -> FrozenSet[int]:
        members = message.get("members")
        if members is None:
            return frozenset(range(self._size))
        if not isinstance(members, list) or not all(type(m) is int and 0 <= m < self._size for m in members):
            raise ProtocolError(f"rank {rank}: 'members' of a suspicion is {members!r:.100}, not a list of ranks")
        return frozenset(members)

    def _judge(self, key: _Key) -> Outgoing:
        """Decide a round of questions. Mismatches and dead ranks always count, slow ones only at the deadline."""
        comm, seq = key
        probing = self._rounds.pop(key)
        # Send and recv are not numbered (0): what others are in says nothing about them.
        said = probing.operations() if seq != 0 else {}
        if len(set(said.values())) > 1:
            # Show the call that most ranks made, and one that differs. Blame no rank: nobody knows which is wrong.
            usual = collections.Counter(said.values()).most_common(1)[0][0]
            typical = next(rank for rank, op in said.items() if op == usual)
            odd = next(rank for rank, op in said.items() if op != usual)
            reason = f"rank {typical} called {usual} but rank {odd} called {said[odd]} as operation #{seq}"
            return self._fail(comm, "CollectiveMismatch", -1, reason)
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
        culprit, reason = self._explain(probing, seq)
        if probing.final:
            return self._fail(comm, "CollectiveTimeout", culprit, reason)
        if culprit < 0:
            return []  # all are at it: the data takes its time, and nobody is to blame
        stall = {"type": "stall", "comm": comm, "seq": seq, "text": reason}
        return [(rank, stall) for rank in sorted(probing.suspects) if rank in self._present]

    def _explain(self, probing: _Inquiry, seq: int) -> Tuple[int, str]:
        answered = probing.states.keys() | probing.suspects.keys()
        silent = sorted(probing.members - answered - self._departed.keys())
        if silent:
            verb, whose = ("does", "its host is") if len(silent) == 1 else ("do", "their hosts are")
            first = min(silent, key=lambda rank: (self._silent.get(rank, self._probes + 1), rank))
            return first, f"{name_ranks(silent)} {verb} not answer (stopped, or {whose} unreachable or very slow)"
        behind = {r: s for r, s in sorted(probing.states.items()) if 0 <= s["submitted"] < seq}
        behind = {r: s for r, s in behind.items() if r not in probing.suspects}
        if behind:
            rank = min(behind)
            others = [other for other in behind if other != rank]
            more = f" ({name_ranks(others)} {'has' if len(others) == 1 else 'have'} not called it either)"
            return rank, f"rank {rank} has not called it; {_last(behind[rank])}{more if others else ''}"
        for rank, lack in probing.shortages().items():
            return rank, f"rank {rank} cannot make the connections for it: {lack}"
        waiting = probing.awaiting_gpus()
        if waiting:
            gpus = "its GPU has" if len(waiting) == 1 else "their GPUs have"
            return waiting[0], f"{name_ranks(waiting)} called it, but {gpus} not copied the array to the host"
        asker = probing.suspects[probing.asker]
        if seq == 0:  # send and recv are not numbered: only the two sides know of them
            return asker["peer"], asker["reason"] or "the other side has not called its part"
        late = sorted(probing.suspects)
        verb = "has" if len(late) == 1 else "have"
        return -1, f"every rank answers and has called it, but {name_ranks(late)} {verb} not finished it"

    def _decided(self, comm: int) -> bool:
        return comm in self._failures or ALL in self._failures

    def _fail(self, comm: int, kind: str, culprit: int, reason: str) -> Outgoing:
        if self._decided(comm):
            return []
        failure = {"type": "fail", "comm": comm, "kind": kind, "culprit": culprit, "reason": reason}
        self._failures[comm] = failure
        self.first_failure = self.first_failure or failure
        for pending in (self._suspicions, self._rounds):
            for key in [key for key in pending if comm in (ALL, key[0])]:
                del pending[key]
        return [(rank, failure) for rank in sorted(self._present)]


_LEFT = "it has shut down (its program ended)"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 3``, ``ranks 2, 5`` or ``ranks 2, 5-9`` for ascending ranks."""
    runs: List[List[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    single = len(runs) == 1 and len(runs[0]) == 1
    names = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"{'rank' if single else 'ranks'} {', '.join(names)}"


def _last(state: Message) -> str:
    if state["submitted"] == 0:
        return "it has not called any operation yet"
    text = f" ({state['last']})" if state["last"] else ""
    return f"its last operation is #{state['submitted']}{text}"


def _had_submitted(submitted: Dict[str, Any], comm: int, seq: int) -> bool:
    number = submitted.get(str(comm), -1)
    return isinstance(number, int) and seq != 0 and number >= seq
