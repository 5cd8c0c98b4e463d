"""Collective operations among the members of a generation, as the engine has them: all must enter before one ends.

An operation is broken off by its member: who has not ended it by then does not end it any more. Each ends at its own
time. A member behind a partition waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Dict, Set, Tuple

from ddl.store.membership.records import GenerationRecord

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank
    from tests.simulation.world import World

__all__ = ["Collectives", "Operation"]


@dataclass
class Operation:
    """The operation number ``number`` of a generation."""

    record: GenerationRecord
    number: int
    entered: Dict[int, Tuple[int, str]] = field(default_factory=dict)  #: with (finished steps, digest)
    under_way: bool = False  #: all have entered
    ended: Set[int] = field(default_factory=set)


class Collectives:
    """All operations of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._operations: Dict[Tuple[GenerationRecord, int], Operation] = {}

    def enter(self, rank: SimRank, record: GenerationRecord, number: int) -> Operation:
        """Let a rank enter operation ``number`` with the state that it has."""
        key = (record, number)
        operation = self._operations.setdefault(key, Operation(record, number))
        operation.entered[rank.incarnation] = (rank.script.finished, rank.script.digest)
        self._look(operation)
        return operation

    def withdraw(self, rank: SimRank, operation: Operation) -> None:
        """A rank breaks the operation off."""
        if not operation.under_way:
            operation.entered.pop(rank.incarnation, None)

    def _look(self, operation: Operation) -> None:
        if operation.under_way or len(operation.entered) < len(operation.record.members):
            return
        world = self._world
        ranks = [world.ranks[member] for member in operation.record.members]
        if not all(rank.alive for rank in ranks):
            return
        if self._is_cut(operation):
            world.at(world.now + 0.05, self._look, operation)
            return
        operation.under_way = True
        world.checker.all_entered(operation)
        for rank in ranks:
            luck = world.chance.at(f"end {operation.record.generation} {operation.number} {rank.incarnation}")
            delay = 0.001 + 0.004 * luck if luck < 0.9 else (luck - 0.9) * 3
            world.at(world.now + delay, self._end, operation, rank)

    def _is_cut(self, operation: Operation) -> bool:
        if self._world.network.is_whole:
            return False
        hosts = sorted({self._world.ranks[member].host for member in operation.record.members})
        network = self._world.network
        return any(network.is_cut(host, other) for host in hosts for other in hosts if host < other)

    def _end(self, operation: Operation, rank: SimRank) -> None:
        if not rank.alive or rank.script.operation is not operation:
            return
        if self._is_cut(operation):
            self._world.at(self._world.now + 0.05, self._end, operation, rank)
            return
        rank.run("engine", rank.script.operation_ended, operation)
