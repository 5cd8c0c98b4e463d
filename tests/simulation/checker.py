"""What must hold in every run. The checker sees vote cells, records, operations and verdicts, and believes no machine.

It counts votes itself: a record is decided when a quorum of the voters of the generation before, which is decided, has
written one ballot of it into their cells. Numbers of the invariants are those of docs/elastic.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

from ddl.store.membership.records import Accepted, BallotNumber, GenerationRecord
from ddl.store.messages import Message
from tests.simulation.collective import Operation

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank
    from tests.simulation.sim_store import SimStore
    from tests.simulation.world import World

__all__ = ["Checker", "Violation", "are_quorum"]

_UNASKED = 1.5  # seconds of an elected store in which it may not know who is there

_DIVIDES = 5.0  # seconds in which a store that hears two hosts gives up one of them, if these do not hear each other
_DECIDES = 3.0  # seconds in which a store with a quorum decides

_Cell = Tuple[GenerationRecord, BallotNumber, Optional[Accepted]]


class Violation(AssertionError):
    """Something does not hold. ``rule`` says what."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"invariant {rule}: {text}")
        self.rule = rule


def are_quorum(votes: Set[int], record: GenerationRecord) -> bool:
    """Whether ``votes`` decide what follows ``record``; counted without the machines' own function."""
    voters = [*record.members, -1] if record.witness else list(record.members)
    present = sum(1 for voter in voters if voter in votes)
    return present * 2 > len(voters) or (present * 2 == len(voters) and voters[0] in votes)


class Checker:
    """Checks the run of ``world`` as it goes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.decided: Dict[int, GenerationRecord] = {}
        self.ended: Dict[str, int] = {}  #: why processes could not go on, and how many
        self.cut_off: Set[int] = set()  #: ranks that left as a fault had cut them off from a living store
        self.state_lost = False
        self._votes: Dict[Tuple[BallotNumber, GenerationRecord], Set[int]] = {}
        self._winners: Dict[Tuple[int, GenerationRecord], int] = {}
        self._gaps: Set[int] = set()  # who was blamed through no fault of the machines; see ``blamed``
        self._gone: Dict[int, int] = {}  # incarnation -> the generation that left it out
        self._deciding: Dict[str, Tuple[object, float]] = {}  # by store: what it decides with a quorum, and since when
        self._divided: Dict[Tuple[int, int], Tuple[object, float]] = {}  # by hosts: who should give up one, since when
        self._values: Dict[GenerationRecord, List[Any]] = {}
        self._states: Dict[Tuple[GenerationRecord, int], Tuple[int, str]] = {}
        self._verdicts: Dict[Tuple[str, int], Message] = {}
        self._promises: Dict[Tuple[int, int], BallotNumber] = {}  # (voter, epoch) -> whom it elected
        self.steps: Dict[str, Tuple[str, int]] = {}  # digest -> (digest before, step)

    def fail(self, rule: str, text: str) -> None:
        """End the run."""
        raise Violation(rule, f"{text} (second {self._world.now:.4f})")

    def begin(self, record: GenerationRecord) -> None:
        """The launcher has decided the first generation."""
        self.decided[record.generation] = record

    @property
    def latest(self) -> GenerationRecord:
        """Return the last generation that is decided."""
        return self.decided[max(self.decided)]

    # --- votes and records ---

    def kept(self, voter: int, before: _Cell, after: _Cell) -> None:
        """A vote cell was written."""
        record, promised, accepted = after
        if promised < before[1]:
            self.fail("1 one record", f"voter {voter} takes back its promise {before[1]} for {promised}")
        if record.generation < before[0].generation:
            self.fail("1 one record", f"voter {voter} goes back from {before[0]} to {record}")
        if record != before[0]:
            self._known(f"voter {voter}", record)
        if accepted is None or accepted == before[2]:
            return
        if accepted.record.generation != record.generation + 1:
            self.fail("1 one record", f"voter {voter} of {record} accepts {accepted.record}")
        votes = self._votes.setdefault((accepted.ballot, accepted.record), set())
        votes.add(voter)
        base = self.decided.get(record.generation)
        if base == record and are_quorum(votes, base):
            self._decide(accepted.record)

    def _decide(self, record: GenerationRecord) -> None:
        other = self.decided.get(record.generation)
        if other is not None:  # there are only more votes for it
            if other != record:
                self.fail("1 one record", f"both {other} and {record} are decided")
            return
        self.decided[record.generation] = record
        base = self.decided[record.generation - 1]
        kept = [member for member in base.members if member in record.members]
        if list(record.members[: len(kept)]) != kept:
            self.fail("3 members and order", f"{record} follows {base}")
        for member in base.members:
            if member not in record.members:
                self._gone.setdefault(member, record.generation)
        for member in record.members:
            rank = self._world.ranks.get(member)
            # A newcomer that was stopped while it became a member, and was left out for that, knows nothing of it: it
            # had no part in that generation. A store that was elected since does not know either, and may take it.
            if rank is not None and rank.participant.newcomer:
                self._gone.pop(member, None)
            if self._gone.get(member, record.generation) < record.generation:
                self.fail("3 members and order", f"{member} is in {record}, and was left out before")
            if rank is None or rank.participant.newcomer and not rank.participant._caught_up:
                self.fail("3 members and order", f"{member} is in {record}, and has not caught up")
        if record.witness and not base.witness:
            self.fail("3 members and order", f"{record} has a witness again")
        self._world.counts["a generation was decided"] += 1

    def _known(self, who: str, record: GenerationRecord) -> None:
        if self.decided.get(record.generation) != record:
            self.fail("2 decided by a quorum", f"{who} takes {record} for decided")

    def rank_knows(self, rank: SimRank) -> None:
        """A rank has done something."""
        self._known(rank.name, rank.participant.record)

    def told(self, rank: SimRank, record: GenerationRecord) -> None:
        """A script is told of a generation."""
        self._known(rank.name, record)
        if rank.incarnation not in record.members:
            self.fail("3 members and order", f"{rank.name} is told of {record}, which it is not in")

    def store_knows(self, store: SimStore) -> None:
        """A store has done something."""
        self._known("store " + store.address, store.membership.record)
        if self._world.now - store.process.resumed_at < _UNASKED:
            self._gaps.update(store.membership._roster.absent)  # see ``blamed``

    def look(self) -> None:
        """A second has passed: does a store wait for a silent voter, although it has a quorum without it?"""
        for store in self._world.stores:
            asked = store.membership._voting.decision
            since = self._world.now - max(self._deciding.get(store.address, (None, 0.0))[1], store.process.resumed_at)
            if not store.open or asked is None or not asked.has_quorum or not asked.silent:
                self._deciding.pop(store.address, None)
            elif self._deciding.get(store.address, (None, 0.0))[0] is not asked:
                self._deciding[store.address] = asked, self._world.now
            elif since > _DECIDES and store.process.resumes_at <= self._world.now:
                self.fail("5 every wait ends", f"{store.address} waits for {asked.silent}")

        self._look_at_hosts()

    def _look_at_hosts(self) -> None:
        """Two hosts that do not hear each other, though the store hears all, have no part in one generation for long.

        Who is stopped answers nothing meanwhile, and the store gives it up for that.
        """
        world, store = self._world, self._world.store()
        members = [world.ranks[member] for member in self.latest.members]
        hosts = {member.host for member in members}
        divided = [pair for pair in world.network.apart() if store is not None and hosts.issuperset(pair)]
        before, self._divided = self._divided, {}
        for pair in divided:
            assert store is not None
            concerned = [store.process, *members]
            disturbed = any(not each.alive or each.resumes_at > world.now for each in concerned)
            disturbed |= any(world.network.is_cut(host, store.process.host) for host in hosts)
            what, since = before.get(pair, (None, 0.0))
            if disturbed or what != (store, self.latest):
                since = world.now
            self._divided[pair] = (store, self.latest), since
            if world.now - since > _DIVIDES:
                self.fail("5 every wait ends", f"hosts {pair} do not hear each other, and train in {self.latest}")

    # --- stores ---

    def elected(self, store: SimStore) -> None:
        """A store begins."""
        self._world.counts["a store was elected"] += 1
        key = (store.ballot.epoch, store.membership.record)
        owner = self._winners.setdefault(key, store.ballot.owner)
        if owner != store.ballot.owner:
            self.fail("9 one store", f"both {owner} and {store.ballot.owner} are elected in epoch {key}")

    # --- going on ---

    def went(self, rank: SimRank, generation: int, values: List[Any]) -> None:
        """A rank goes on in a generation."""
        record = self.decided[generation]
        if record not in self._values:
            self._has_enough(record)
        if self._values.setdefault(record, values) != values:
            self.fail("3 members and order", f"{rank.name} goes on with {values}, and others with others")
        if [member for member, _ in values] != list(record.members):
            self.fail("3 members and order", f"{rank.name} goes on with {values} in {record}")
        for member in record.members:
            other = self._world.ranks[member]
            installing = other.script.making
            if installing is None or installing.generation < generation:
                self.fail("7 ready before go", f"{rank.name} goes on in {record}, which {member} has not made")

    def _has_enough(self, record: GenerationRecord) -> None:
        """The first rank goes on in a generation: its members and those that join are as many as the job needs.

        A newcomer that was a member, was left out, and never heard of either, joins a store that was elected since.
        """
        join = {number for number, rank in self._world.ranks.items() if rank.participant.newcomer}
        ranks, least = len(join | set(record.members)), self._world.limits.min_size
        if ranks < least:
            self.fail("11 enough ranks", f"{record} goes on, with {ranks} ranks of at least {least}")

    def all_entered(self, operation: Operation) -> None:
        """All members have entered an operation: it has their data."""
        record = operation.record
        if self.decided.get(record.generation) != record or record.generation + 1 in self.decided:
            self.fail("6 no step of a minority", f"operation {operation.number} of {record} begins")
        for member in record.members:
            went = self._world.ranks[member].went
            if record.generation > 0 and (went is None or went[0] != record.generation):
                self.fail("7 ready before go", f"{member} begins operation {operation.number} of {record} before go")
        states = set(operation.entered.values())
        if operation.number > 0:
            if len(states) > 1:
                self.fail("7 one state", f"operation {operation.number} of {record} has {operation.entered}")
            if min(states)[0] != operation.number - 1:
                self.fail(
                    "8 each step once", f"operation {operation.number} of {record} begins with {operation.entered}"
                )

    def finished(self, rank: SimRank, operation: Operation) -> None:
        """A rank has finished a step."""
        script = rank.script
        numbers = [step for step, _, _ in script.history]
        if numbers != list(range(1, script.finished + 1)):
            self.fail("8 each step once", f"{rank.name} has done {numbers}")
        key = (operation.record, operation.number)
        state = (script.finished, script.digest)
        if self._states.setdefault(key, state) != state:
            self.fail("7 one state", f"{rank.name} comes to {state}, and others to {self._states[key]}")

    def state_is_lost(self, rank: SimRank, record: GenerationRecord) -> None:
        """No member of a generation has the job's state."""
        self.state_lost = True
        for member in record.members:
            if self._world.ranks[member].script.finished > 0:
                self.fail("8 each step once", f"{member} of {record} has the state, which is said to be lost")

    # --- failures ---

    def verdict(self, rank: SimRank, failure: Message) -> None:
        """A rank hears why something has failed."""
        end = rank._end
        assert end is not None
        key = (end.peer.owner.address, failure["comm"])
        culprit = self._world.ranks.get(failure["culprit"])
        if culprit is not None and culprit.leaves and self._world.is_quiet and failure["reason"] == "connection reset":
            self.fail("4 blame", f"{culprit.name} has said goodbye, and {rank.name} hears {failure['reason']}")
        if "have not heard each other" in failure["reason"]:
            self._world.counts["hosts did not hear each other"] += 1
        if failure["comm"] >= 0 and self._verdicts.setdefault(key, failure) != failure:
            self.fail("4 blame", f"{rank.name} hears {failure}, and another rank {self._verdicts[key]}")

    def blamed(self, store: SimStore, number: int, why: str) -> None:
        """A store takes a process for lost, which matters as long as the process follows it."""
        rank = self._world.ranks.get(number)
        if rank is not None and rank.participant.last_store[:2] != store.ballot[:2]:
            return
        if self._world.now - store.process.resumed_at < _UNASKED:
            self._gaps.add(number)  # the store was stopped for the most of the time that it gave
            return
        if rank is not None and rank.alive and not rank.touched and not rank.over:
            self.fail("4 blame", f"{rank.name} is blamed ({why}), and nothing is wrong with it")

    def over(self, rank: SimRank, kind: str, reason: str) -> None:
        """A process cannot go on."""
        self.ended[reason] = self.ended.get(reason, 0) + 1
        self._world.counts[f"{kind}: {reason.split(' (')[0][:60]}"] += 1
        store = self._world.store()
        if "has lost the job's store" in reason and rank.touched and store is not None:
            if store.process is not rank and store.ballot[:2] == rank.participant.last_store[:2]:
                self.cut_off.add(rank.incarnation)
        if rank.incarnation in self._gaps:
            return
        if kind == "left_out" and not rank.touched and not rank.participant.asked_to_leave:
            self.fail("4 blame", f"{rank.name} is left out ({reason}), and nothing is wrong with it")
        if kind == "left_out" and not reason:
            self.fail("5 every wait ends", f"{rank.name} is left out without a reason")

    def protocol_error(self, who: str, error: Exception) -> None:
        """A machine does not understand another one."""
        self.fail("0 protocol", f"{who}: {error}")
