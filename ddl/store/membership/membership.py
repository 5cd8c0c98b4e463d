"""The store's side of ranks that come and go: it decides when there is to be a next generation, and proposes it.

Phases: ``STEADY`` (training), ``STOPPING`` (a planned change: planned_stop.py), ``DECIDING`` (voting.py),
``INSTALLING`` (decided; its members make their communicators and say ``installed``), ``PAUSED`` (all have, but they
are fewer than the job needs; when enough newcomers have come, they finish their step, and these join), ``OVER``. A
death leads to ``DECIDING`` from every phase. When all members of a generation have installed it, all get ``go`` with
what each had said; so nobody goes on before all know who they are.

A member that is lost but still answers (its script is late, say) votes until it is decided that it is left out. If it
were told before, it would end, and its vote would be gone: of two members one may be late, and the other alone is no
quorum.

This state machine does no I/O and has no clock. The store's server brings events and the time, and delivers messages
to incarnations. Messages of members have been authenticated but not checked: a malformed one raises ``ProtocolError``
and has no effect. ``docs/elastic.md`` has the table of messages.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from ddl.store.membership.deadlines import Deadlines
from ddl.store.membership.limits import ElasticLimits, Phase
from ddl.store.membership.planned_stop import PlannedStop
from ddl.store.membership.records import FIRST_BALLOT, BallotNumber, GenerationRecord, is_quorum, record_of
from ddl.store.membership.roster import NO_STATE, Roster
from ddl.store.membership.voting import Voting
from ddl.store.messages import Message, Outgoing, integer, text

__all__ = ["RETRY", "Membership"]

RETRY = 0.25  #: seconds after which questions that nobody has answered are asked again
_VALUE_LIMIT = 64 << 10  # characters that a member says of what it has installed


class Membership:
    """The members of a job, as its store knows them. ``ballot`` is the store's election. Used by one thread."""

    def __init__(
        self,
        record: GenerationRecord,
        limits: ElasticLimits,
        ballot: BallotNumber = FIRST_BALLOT,
        *,
        interrupted: bool = False,
        now: float = 0.0,
    ) -> None:
        # An elected store does not know yet whether all members have made its generation.
        self.phase = Phase.STEADY if ballot == FIRST_BALLOT else Phase.INSTALLING
        self.ended = ""  #: why the job cannot go on
        self.superseded = False  #: another store has been elected: this one must not speak any more
        self.blamed: List[Tuple[int, str]] = []  #: who was taken for lost, and why; the server takes them away
        self.generations: List[Message] = []  #: news for the launcher, who takes them away
        self.limits = limits
        self._roster = Roster(record)
        self._voting = Voting(self._roster, ballot)
        self._stop: Optional[PlannedStop] = None
        self._stops = 0
        self._installed: Dict[int, str] = {}
        self._values: Optional[List[List[object]]] = None if ballot != FIRST_BALLOT else []  # of the last ``go``
        self._lost: Dict[int, str] = {}  # with the present change
        self._began = now  # the present change
        self._deadlines = Deadlines()
        if ballot != FIRST_BALLOT:
            # An elected store waits for the members to come, and first ends what its predecessor had begun.
            self._deadlines.awaited = now + self.limits.answer_patience
        self._interrupted = interrupted

    @property
    def record(self) -> GenerationRecord:
        """The present generation."""
        return self._roster.record

    @property
    def ballot(self) -> BallotNumber:
        """That of the store's election; its attempt counts what it has proposed."""
        return self._voting.ballot

    @property
    def hosts(self) -> Dict[int, str]:
        """What tells the hosts apart of the processes that are there, by their incarnations."""
        return self._roster.present

    def why_absent(self, incarnation: int) -> str:
        """Return why a process is in no later generation; "" if it may be in one."""
        return self._roster.absent.get(incarnation, "")

    # --- events ---

    def lost(self, incarnation: int, why: str, now: float) -> Outgoing:
        """``incarnation`` has ended, or is taken for gone: it is in no later generation."""
        if incarnation in self._roster.absent or self.phase is Phase.OVER:
            return []
        self._roster.absent[incarnation] = why
        self.blamed.append((incarnation, why))
        self._roster.newcomers.pop(incarnation, None)
        out: Outgoing = []
        if self._roster.nobody_has_the_state:
            return self._end(f"{NO_STATE}; of the last one: {why}")
        if incarnation in self._roster.present and incarnation not in self.record.members:
            out.append((incarnation, self._roster.left_out(incarnation)))  # a member votes until it is decided
        if self.phase is Phase.DECIDING:
            return out + self._voting.excuse(incarnation)
        return out + self._change_if_needed(now)

    def gone(self, incarnation: int, why: str, now: float) -> Outgoing:
        """The connection of ``incarnation`` is closed."""
        self._roster.present.pop(incarnation, None)
        return self.lost(incarnation, why, now)

    def left(self, incarnation: int, now: float) -> Outgoing:
        """``incarnation`` has said goodbye: it is in no later generation, but nobody has to hurry because of that."""
        self._roster.present.pop(incarnation, None)
        self._roster.absent.setdefault(incarnation, "it has shut down (its program ended)")
        self._roster.newcomers.pop(incarnation, None)
        if self.phase is not Phase.OVER and self._roster.nobody_has_the_state:
            return self._end(NO_STATE)
        if self.phase in (Phase.STEADY, Phase.OVER):
            return []
        if self.phase is Phase.DECIDING:
            return self._voting.excuse(incarnation)
        return self._change_if_needed(now)

    def remove(self, incarnation: int, now: float) -> Outgoing:
        """``incarnation`` is to leave between two steps."""
        self._roster.leaving.add(incarnation)
        return self._plan_if_needed(now)

    def received(self, incarnation: int, message: Message, now: float) -> Outgoing:
        """A member, or somebody who wants to be one, said something. ``ProtocolError`` if it makes no sense."""
        kind = message.get("type")
        if self.phase is Phase.OVER:
            over: Message = {"type": "end", "reason": self.ended} if self.ended else {"type": "superseded"}
            return [(incarnation, over)] if kind == "here" else []
        if kind == "here":
            return self._here(incarnation, message, now)
        if kind in ("promise", "accepted", "refused"):
            return self._voted(message, now)
        if kind == "ready":
            if integer(incarnation, message, "generation", low=0) < self.record.generation:
                return []
            return self._broken(now)
        if kind == "died":
            return self._died(
                integer(incarnation, message, "incarnation", low=0), text(incarnation, message, "why"), now
            )
        if kind == "installed":
            return self._has_installed(incarnation, message, now)
        if kind in ("at", "stopped"):
            return self._stopping(incarnation, message, now)
        assert kind == "caught_up", kind
        if incarnation in self._roster.newcomers:
            self._roster.newcomers[incarnation] = True
        if self.phase is Phase.PAUSED:
            return self._let_go(now) if self._enough else []
        return self._plan_if_needed(now)

    #: What ``received`` understands.
    KINDS = frozenset("here promise accepted refused ready died installed at stopped caught_up".split())

    def tick(self, now: float) -> Outgoing:
        """Time has passed: do what has waited long enough."""
        if self.phase is Phase.OVER or self._deadlines.slept_through(now, self.limits.answer_patience):
            return []
        out: Outgoing = []
        if self._deadlines.awaited is not None and self._deadlines.awaited <= now:
            out += self._all_came(now)
        if self._deadlines.again is not None and self._deadlines.again <= now:
            out += self._ask_again(now)
        if self._deadlines.phase is not None and self._deadlines.phase <= now:
            out += self._too_late(now)
        return out

    def next_deadline(self) -> Optional[float]:
        """When ``tick`` has something to do; None if nothing is waiting."""
        return None if self.phase is Phase.OVER else self._deadlines.next()

    # --- who is there ---

    def _died(self, incarnation: int, why: str, now: float) -> Outgoing:
        """Somebody of its host has seen its end, and votes for it now."""
        if self.phase is Phase.DECIDING and incarnation in self._roster.absent:
            return self._voting.ask(incarnation)
        return self.lost(incarnation, why, now)

    def _broken(self, now: float) -> Outgoing:
        """The communicators of the present generation are broken, or cannot be made, and perhaps nobody has died."""
        if self._deadlines.awaited is not None:
            self._interrupted = True  # when the others have come
            return []
        changing = self.phase not in (Phase.STEADY, Phase.STOPPING, Phase.INSTALLING)
        return [] if changing else self._change(now)

    def _here(self, incarnation: int, message: Message, now: float) -> Outgoing:
        host, record = text(incarnation, message, "host"), record_of(message, "record")
        if incarnation in self._roster.absent and incarnation not in {*self.record.members, *record.members}:
            return [(incarnation, self._roster.left_out(incarnation))]
        self._roster.present[incarnation] = host
        if message.get("newcomer") is True and incarnation not in self.record.members:
            self._roster.newcomers.setdefault(incarnation, False)
        # A member may know a later generation than an elected store, and may have had ``go`` for it: see below.
        out: Outgoing = self._learn(record, now) if record.generation > self.record.generation else []
        if incarnation not in self.record.members:
            if incarnation in self._roster.newcomers:
                return out
            self._roster.exclude(incarnation)  # it is nobody's loss any more
            if self._voting.decision is not None:
                return out + self._voting.questions()
            return out if self._deadlines.awaited is not None else out + self._roster.tell_left_out()
        if record.generation < self.record.generation:
            out.append((incarnation, {"type": "commit", "record": self.record.message()}))
        if self._voting.decision is not None:
            out.append((incarnation, self._voting.decision.question(incarnation)))
        if record.generation == self.record.generation:
            out += self._went(message.get("went"), now)
        if self._deadlines.awaited is not None:
            all_here = self._roster.present.keys() >= set(self.record.members) - self._roster.absent.keys()
            # Those that were busy with electing another store come one after the other.
            self._deadlines.awaited = (
                now if all_here else max(self._deadlines.awaited, now + self.limits.answer_patience)
            )
        return out

    def _all_came(self, now: float) -> Outgoing:
        """This store was elected, and the members have had the time to come to it: end what was under way."""
        missing = [m for m in self.record.members if m not in self._roster.present and m not in self._roster.absent]
        if missing and not is_quorum(self._roster.present.keys() | self._roster.absent.keys(), self.record.voters):
            if now - self._began >= self.limits.patience:
                return self._end(self._voting.no_majority(missing, self.limits.patience))
            self._deadlines.awaited = now + RETRY
            return []
        self._deadlines.awaited = None
        if self.phase is Phase.INSTALLING:  # the programs have their time from now on: none was told anything before
            self._deadlines.phase = now + self.limits.script_patience
        out: Outgoing = []
        for member in missing:
            out += self.lost(member, "it has not come to the new store", now)
        if self._interrupted and self._voting.decision is None:
            return out + self._change(now)
        if self._voting.decision is None:
            out += self._roster.tell_left_out()
        return out + self._plan_if_needed(now)

    def _went(self, values: object, now: float) -> Outgoing:
        """A member has had ``go`` for this generation from the last store: so all of them may go."""
        if self._values is not None or not isinstance(values, list):
            return []
        self._values = values
        if self.phase is not Phase.INSTALLING:
            return []
        self.phase, self._deadlines.phase = Phase.STEADY, None
        return [(member, self._go()) for member in self._installed] + self._plan_if_needed(now)

    def _go(self) -> Message:
        return {"type": "go", "generation": self.record.generation, "values": self._values}

    # --- planned changes ---

    def _plan_if_needed(self, now: float) -> Outgoing:
        if self._deadlines.awaited is not None:
            return []  # a member that has not come yet would not hear where to stop
        if self._roster.missing:
            return []  # it has said goodbye: perhaps the job ends, else the others come to a change by themselves
        if self.phase is not Phase.STEADY or not (self._roster.joining or self._roster.to_leave()):
            return []
        self._stops += 1
        self._stop = PlannedStop([*self.ballot[:2], self._stops], self.record.members)
        self.phase, self._began, self._deadlines.phase = Phase.STOPPING, now, now + self.limits.script_patience
        return self._stop.begin()

    def _stopping(self, incarnation: int, message: Message, now: float) -> Outgoing:
        if self._stop is None:
            return []
        out = self._stop.answered(incarnation, message)
        if out:
            self._deadlines.phase = now + self.limits.script_patience
        return out + (self._change(now) if self._stop.complete else [])

    # --- deciding ---

    def _change_if_needed(self, now: float) -> Outgoing:
        return self._change(now) if self._roster.missing else []

    def _change(self, now: float) -> Outgoing:
        """Begin to decide what follows the present generation."""
        if self.phase is Phase.STEADY:  # after a pause for want of ranks, the change is still the one that led to it
            self._began = now
        planned = self._stop is not None and self._stop.complete
        self._stop = None
        self.phase, self._deadlines.phase = Phase.DECIDING, now + self.limits.patience
        self._deadlines.again = now + self.limits.answer_patience
        return self._voting.begin(planned=planned)

    def _voted(self, message: Message, now: float) -> Outgoing:
        if self._voting.decision is None:
            return []
        return self._voting.heard(message) + self._look_at_decision(now)

    def _look_at_decision(self, now: float) -> Outgoing:
        decision = self._voting.decision
        assert decision is not None
        if decision.decided is not None:
            return self._learn(decision.decided, now)
        if decision.overtaken is not None:
            if not self._voting.outdo(decision.overtaken):
                self._voting.decision, self.superseded, self.phase = None, True, Phase.OVER
                return [(incarnation, {"type": "superseded"}) for incarnation in self._roster.present]
            return self._change(now)
        return []

    def _ask_again(self, now: float) -> Outgoing:
        """Agents have had their time."""
        if self._voting.decision is None:
            self._deadlines.again = None
            return []
        self._deadlines.again = now + RETRY
        return self._voting.ask_again(self.limits.answer_patience) + self._look_at_decision(now)

    def _learn(self, record: GenerationRecord, now: float) -> Outgoing:
        """``record`` is decided: let its members make it."""
        self._lost.update(self._roster.enter(record))
        self._voting.learn(record)
        self._stop, self._deadlines.again, self._installed, self._values = None, None, {}, None
        self.phase, self._deadlines.phase = Phase.INSTALLING, now + self.limits.script_patience
        commit = {"type": "commit", "record": record.message()}
        out: Outgoing = [(member, commit) for member in record.members if member in self._roster.present]
        out += self._roster.tell_left_out()
        return out + self._change_if_needed(now)

    # --- installing ---

    def _has_installed(self, incarnation: int, message: Message, now: float) -> Outgoing:
        generation, value = (
            integer(incarnation, message, "generation", low=0),
            text(incarnation, message, "value", limit=_VALUE_LIMIT),
        )
        if generation != self.record.generation or incarnation not in self.record.members:
            return []
        if self._values is not None:
            return [(incarnation, self._go())]
        self._installed[incarnation] = value
        if self.phase is not Phase.INSTALLING or len(self._installed) < len(self.record.members):
            return []
        if not self._enough:
            self.phase, self._deadlines.phase = Phase.PAUSED, now + self.limits.patience
            return []
        return self._let_go(now)

    @property
    def _enough(self) -> bool:
        """Whether the job has the ranks that it needs, with those that join as soon as a step has ended."""
        return len(self.record.members) + self._roster.joining >= self.limits.min_size

    def _let_go(self, now: float) -> Outgoing:
        """All members have made their generation: let them go on."""
        self.phase, self._deadlines.phase = Phase.STEADY, None
        self.generations.append({**self.record.message(), "lost": self._lost, "seconds": now - self._began})
        self._lost = {}
        self._values = [[member, self._installed[member]] for member in self.record.members]
        return [(member, self._go()) for member in self.record.members] + self._plan_if_needed(now)

    # --- deadlines ---

    def _too_late(self, now: float) -> Outgoing:
        self._deadlines.phase = None
        limits = self.limits
        if self.phase is Phase.PAUSED:
            size = len(self.record.members)
            return self._end(
                f"{size} ranks are left of at least {limits.min_size}; none joined in {limits.patience:g} s"
            )
        if self.phase is Phase.DECIDING and self._voting.decision is not None:
            return self._end(self._voting.no_majority(self._voting.decision.unanswered, limits.patience))
        late = self._stop.late if self._stop is not None else []
        if self._stop is not None and not late:
            self._deadlines.phase = now + limits.script_patience
        if self.phase is Phase.INSTALLING:
            late = [member for member in self.record.members if member not in self._installed]
        out: Outgoing = []
        for member in late:
            why = f"its program has not come to the change of ranks for {limits.script_patience:g} s"
            out += self.lost(member, why, now)
        return out

    def _end(self, reason: str) -> Outgoing:
        self.phase, self.ended, self._voting.decision = Phase.OVER, reason, None
        return [(incarnation, {"type": "end", "reason": reason}) for incarnation in self._roster.present]
