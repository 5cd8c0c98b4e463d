"""The job's store of a simulated job: the production state machines, driven as ddl/store/server.py drives them.

Only the membership and the verdicts are here; keys, values and the pace are not.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, Optional, Set

from ddl.errors import ProtocolError
from ddl.store.membership.acceptor import Acceptor
from ddl.store.membership.limits import Phase
from ddl.store.membership.membership import Membership
from ddl.store.membership.records import FIRST_BALLOT, WITNESS, BallotNumber
from ddl.store.messages import Message, Outgoing
from ddl.store.verdict import JobVerdicts
from tests.simulation.network import APART
from tests.simulation.vote_cells import SimCell

if TYPE_CHECKING:
    from tests.simulation.network import End
    from tests.simulation.process import SimProcess
    from tests.simulation.world import World

__all__ = ["SimStore"]


class SimStore:
    """A store in ``process``, which is ddlrun or an elected rank. It owns one side of each connection to it."""

    def __init__(self, world: World, process: SimProcess, membership: Membership, ballot: BallotNumber) -> None:
        self.world = world
        self.process = process
        self.membership = membership
        self.ballot = ballot
        self.open = True
        self.is_known = True  #: as a store that may speak
        self.asked: Set[int] = set()  #: processes that it was told to let go
        self.address = f"{process.name}/{ballot.epoch}"
        record = membership.record
        self.verdict = JobVerdicts(max(record.members) + 1, self._host_of, APART)
        self.verdict.renumber(record.members)
        self.claims: Dict[int, End] = {}
        self._began = world.now
        self._ends: Dict[int, str] = {}
        self._armed: Optional[float] = None
        if ballot == FIRST_BALLOT and membership._voting.witness is not None:
            cell = SimCell(world, WITNESS, record, ballot)
            membership._voting.witness = Acceptor(WITNESS, cell)
        world.stores.append(self)

    @property
    def age(self) -> float:
        """Seconds since it began to serve, as an elected store; the first one is as old as the job."""
        return self.world.now - self._began if self.ballot != FIRST_BALLOT else math.inf

    @property
    def is_steady(self) -> bool:
        """Whether it lets its members train."""
        return self.open and self.membership.phase is Phase.STEADY

    def _host_of(self, number: int) -> str:
        return self.membership.hosts.get(number) or f"that of rank {number}"

    def close(self) -> None:
        """Stop to serve; the process goes on."""
        self.open = False
        for end in list(self.claims.values()):
            end.close(self.world)
        self.claims.clear()

    # --- events ---

    def came(self, end: End, number: int) -> bool:
        """Process ``number`` has connected. Return whether it may be who it says."""
        if not self.open or number in self.claims:
            return False
        end.number = number
        self.claims[number] = end
        self.process.run(f"came {number}", self._joined, number)
        return True

    def _joined(self, number: int) -> None:
        self._deliver(self.verdict.joined(number, self.process.clock()))
        self.turn()

    def arrived(self, end: End, message: Message) -> None:
        """A rank said something."""
        number, now = end.number, self.process.clock()
        if not self.open or self.claims.get(number) is not end:
            return
        try:
            if message.get("type") in Membership.KINDS:
                self._deliver(self.membership.received(number, message, now))
            elif message.get("type") == "bye":
                self._deliver(self.verdict.received(number, message, now))
                self._deliver(self.membership.left(number, now))
            elif not self.membership.why_absent(number):
                self._deliver(self.verdict.received(number, message, now))
        except ProtocolError as error:
            self.world.checker.protocol_error(f"{number} to the store", error)
        self.turn()

    def ended(self, end: End, why: str) -> None:
        """A connection is closed."""
        number, now = end.number, self.process.clock()
        if not self.open or self.claims.get(number) is not end:
            return
        del self.claims[number]
        died = self.verdict.is_present(number)
        if died:
            self._ends.setdefault(number, f"the process of rank {number} ended ({why})")
        self._deliver(self.verdict.dropped(number, now, why))
        if died:
            self._deliver(self.membership.gone(number, self._ends[number], now))
        self.turn()

    def process_ended(self, number: int, how: str) -> None:
        """The launcher has seen the end of a process."""
        if not self.open:
            return
        self._ends[number] = how
        if self.verdict.is_present(number):
            self._deliver(self.membership.lost(number, how, self.process.clock()))
        self.turn()

    def remove(self, number: int) -> None:
        """A process is to leave between two steps."""
        if self.open:
            self.asked.add(number)
            self._deliver(self.membership.remove(number, self.process.clock()))
            self.turn()

    # --- the turn of the server's loop ---

    def _wake(self, moment: float) -> None:
        if self.open and self._armed == moment:
            self._armed = None
            self.turn()

    def turn(self) -> None:
        """Look at the clock, and let the machines know what the others have found."""
        now = self.process.clock()
        if not self.process.resuming:
            self._deliver(self.verdict.tick(now))
            self._deliver(self.membership.tick(now))
        while self.verdict.blamed:
            number, why = self.verdict.blamed.pop(0)
            self._deliver(self.membership.lost(number, why, now))
        while self.membership.blamed:
            number, why = self.membership.blamed.pop(0)
            self.world.checker.blamed(self, number, why)
            self._deliver(self.verdict.lost(number, why))
        self.verdict.blamed.clear()
        while self.membership.generations:
            self.verdict.renumber(self.membership.generations.pop(0)["members"])
        self.world.checker.store_knows(self)
        if self.membership.superseded and self.is_known:
            self.is_known = False
            self.world.counts["a store was superseded"] += 1
        self._arm()

    def _arm(self) -> None:
        deadlines: List[float] = [
            deadline
            for deadline in (self.verdict.next_deadline(), self.membership.next_deadline())
            if deadline is not None
        ]
        if not deadlines:
            self._armed = None
            return
        moment = max(self.process.moment(min(deadlines)), self.world.now) + 0.001
        if self._armed is None or self._armed > moment or self._armed <= self.world.now:
            self._armed = moment
            self.world.at(moment, self.process.run, f"clock {self.address}", self._wake, moment)

    def _deliver(self, outgoing: Outgoing) -> None:
        for number, message in outgoing:
            end = self.claims.get(number)
            if end is not None:
                self.process.say(end, message)
