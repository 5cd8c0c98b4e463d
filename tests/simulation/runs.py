"""Runs a schedule, for safety or for liveness, and makes a schedule that fails as small as it gets.

Safety: whatever goes wrong, nothing wrong may happen. Liveness: at ``faulty_until`` all that can be mended is; if those
that are left can decide, the job must train again within ``BOUND`` seconds, and whoever does not must have ended.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Callable, Collection, Dict, List, Optional

from ddl.store.membership.acceptor import Acceptor, VoteCell
from ddl.store.membership.decision import Decision
from ddl.store.membership.records import WITNESS, BallotNumber, GenerationRecord
from ddl.store.membership.roster import ASKED
from tests.simulation.checker import Violation, are_quorum
from tests.simulation.faults import Schedule
from tests.simulation.injector import Injector
from tests.simulation.world import World

__all__ = ["BOUND", "Outcome", "play", "shrunk"]

BOUND = 60.0  #: seconds after healing until all must be well, beyond the job's patience
_SETTLES = 12.0  # seconds until nothing is waited for any more
_STEPS = 5  # that must be finished after healing


@dataclass(frozen=True)
class Outcome:
    """What has come of a run."""

    schedule: Schedule
    digest: str
    events: int
    counts: Dict[str, int]
    violation: str = ""
    rule: str = ""
    trace: Optional[List[str]] = None


def play(schedule: Schedule, *, liveness: bool = False, trace: bool = False) -> Outcome:
    """Run ``schedule``."""
    world = World(schedule, trace=trace)
    violation, rule = "", ""
    try:
        injector = Injector(world)
        world.run(schedule.faulty_until)
        if liveness:
            _heal(world, injector)
    except Violation as error:
        violation, rule = str(error), error.rule
    except Exception as error:  # a machine must never raise
        violation, rule = f"{type(error).__name__}: {error}", "0 protocol"
        if trace:
            import traceback

            violation += "\n" + traceback.format_exc()
    return Outcome(schedule, world.digest, world.events, dict(world.counts), violation, rule, world.trace)


def _heal(world: World, injector: Injector) -> None:
    injector.stop()
    world.healed_at = world.now
    world.note("world", "is healed")
    can_decide = _can_decide(world)
    limit = world.now + world.schedule.patience + BOUND
    world.run(limit, lambda: _is_well(world))
    if _is_well(world):
        world.run(world.now + _SETTLES, lambda: not _waiting(world))
        if _waiting(world):
            world.checker.fail("10 idle is silent", f"all is well, but {_waiting(world)}")
        if _staying(world):
            world.checker.fail("12 who is asked leaves", f"processes {_staying(world)} train on, and others could")
        return
    alive = [rank for rank in world.alive() if not rank.over]
    states = {rank.name: (rank.script.state_name, rank.participant.record.generation) for rank in alive}
    if alive:
        store = world.store()
        phase = store.membership.phase if store is not None else None
        world.checker.fail(
            "5 every wait ends", f"{states} are not well; the store of {store and store.address}: {phase}"
        )
    excused = world.checker.state_lost or _shortage(world) or _left_willingly(world)
    if can_decide and not excused:
        world.checker.fail("5 every wait ends", f"nobody is left, and they could have gone on: {world.checker.ended}")


def _can_decide(world: World) -> bool:
    """Whether those that are alive, with the dead for whom they vote, decide on what follows the last generation.

    Nobody alive may know that the last one is decided. Then they must be enough for the one before, too. Where the
    launcher's store is there, its witness counts, but no rank that has lost its connection to it. What an earlier
    attempt may have decided binds them: if none of them is in that, it leaves them out.
    """
    latest, votes = world.checker.latest, set()
    alive = [rank for rank in world.alive() if not rank.over and not rank.leaves]
    training = [rank for rank in alive if rank.script.state_name != "ended"]
    if world.launcher.alive and world.schedule.witness:
        votes.add(WITNESS)
        training = [rank for rank in training if rank.follows(world.launcher)]
    for rank in training:
        votes.add(rank.incarnation)
        votes.update(number for number in rank.neighbours if not world.ranks[number].alive)
    if not any(rank.incarnation in latest.members for rank in training):
        return False
    known = max((rank.participant.record for rank in training), key=lambda record: record.generation)
    following = _following(world, known, votes)
    if following is not None and not any(rank.incarnation in following.members for rank in training):
        return False
    return are_quorum(votes, known) and are_quorum(votes, latest)


def _following(world: World, base: GenerationRecord, votes: Collection[int]) -> Optional[GenerationRecord]:
    """Return what must follow ``base``, as the cells of ``votes`` are; ``base``: anything; None: they are too few."""
    ballot = BallotNumber(1_000_000, 0, 0)  # above all others
    decision = Decision(base, ballot, set(), lambda: base)
    for voter in votes:
        cell: VoteCell = world.ranks[voter].cell.mapped() if voter != WITNESS else _witness(world).cell
        accepted = cell.accepted.message() if cell.record == base and cell.accepted is not None else None
        answer = {"type": "promise", "voter": voter, "ballot": list(ballot), "generation": base.generation + 1}
        decision.heard({**answer, "accepted": accepted})
    decision.hurry()
    return decision.proposed


def _witness(world: World) -> Acceptor:
    witness = world.stores[0].membership._voting.witness
    assert witness is not None
    return witness


def _shortage(world: World) -> bool:
    """Whether the job has ended for a reason that is named, and that a fault was long enough for."""
    named = ("of at least", "no majority", "no rank is left")
    return any(part in reason for reason in world.checker.ended for part in named)


def _left_willingly(world: World) -> bool:
    """Whether all that were left in the last generation said goodbye, were asked to go, or were cut off from the store.

    It may be that nobody knew yet that the host of all others is off, or that another one was given up shortly before.
    What an earlier attempt may have decided can leave out all others but one that is cut off.
    """
    members, cut_off = world.checker.latest.members, world.checker.cut_off
    return all(number in cut_off or world.ranks[number].over in ("", ASKED) for number in members)


def _is_well(world: World) -> bool:
    """Whether all that are alive are members and train, or have ended."""
    alive = [rank for rank in world.alive() if not rank.over]
    store = world.store()
    if not alive or store is None or not store.is_steady:
        return False
    members = store.membership.record.members
    return all(rank.incarnation in members and rank.script.steps_since_heal >= _STEPS for rank in alive)


def _waiting(world: World) -> str:
    """Return who waits for something: where all is well, no machine does."""
    store = world.store()
    if store is None:
        return "there is no store"
    deadline = store.membership.next_deadline()
    if deadline is not None:
        return f"the store waits for {deadline - store.process.clock():.3f} s, {store.membership.phase}"
    for rank in world.alive():
        deadline = rank.participant.next_deadline()
        if deadline is not None:
            return f"{rank.name} waits for {deadline - rank.clock():.3f} s"
    return ""


def _staying(world: World) -> List[int]:
    """Return the members that the store was told to let go. Where all of them are such, they keep the state."""
    store = world.store()
    members = store.membership.record.members if store is not None else ()
    asked = store.asked.intersection(members) if store is not None else set()
    return sorted(asked) if len(asked) < len(members) else []


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Take away faults, and make the rest simpler, as long as ``schedule`` still ``fails``."""
    size = max(1, len(schedule.faults) // 2)
    while size >= 1:
        place = 0
        while place < len(schedule.faults):
            rest = schedule.faults[:place] + schedule.faults[place + size :]
            smaller = dataclasses.replace(schedule, faults=rest)
            if fails(smaller):
                schedule = smaller
            else:
                place += size
        size //= 2
    if len(schedule.ranks_of_hosts) > 1:
        together = dataclasses.replace(schedule, ranks_of_hosts=(sum(schedule.ranks_of_hosts),))
        schedule = together if fails(together) else schedule
    return schedule
