"""Vote cells in memory that the processes of a simulated host share. The checker sees all that is written to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Tuple

from ddl.store.membership.acceptor import VoteCell
from ddl.store.membership.records import Accepted, BallotNumber, GenerationRecord

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["SimCell"]

_State = Tuple[GenerationRecord, BallotNumber, Optional[Accepted]]


class SimCell(VoteCell):
    """The cell of ``voter`` as one process has mapped it; ``mapped`` by another one, it is the same memory."""

    def __init__(self, world: World, voter: int, record: GenerationRecord, promised: BallotNumber) -> None:
        super().__init__(record, promised)
        self.world = world
        self.voter = voter
        self._shared: List[_State] = [(record, promised, None)]

    def mapped(self) -> SimCell:
        """Return the same memory for another process."""
        cell = SimCell(self.world, self.voter, self.record, self.promised)
        cell._shared = self._shared
        cell.load()
        return cell

    def load(self) -> None:
        """See VoteCell."""
        self.record, self.promised, self.accepted = self._shared[0]

    def keep(self) -> None:
        """See VoteCell."""
        before, self._shared[0] = self._shared[0], (self.record, self.promised, self.accepted)
        self.world.checker.kept(self.voter, before, self._shared[0])
