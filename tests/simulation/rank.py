"""The process of a rank: a ``Participant``, driven as ddl/bootstrap/generations.py and agent.py drive it.

Its script (script.py) runs beside it. What the real pump does in short-lived threads (to connect to a store, to serve
one, to call a member) takes its time here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ddl.errors import ProtocolError
from ddl.store.membership.membership import Membership
from ddl.store.membership.participant import SELF, STORE, Participant
from ddl.store.membership.records import FIRST_BALLOT, BallotNumber, GenerationRecord
from ddl.store.messages import Message, Outgoing
from ddl.store.verdict import ALL
from tests.simulation.process import SimProcess
from tests.simulation.script import SimScript
from tests.simulation.sim_store import SimStore
from tests.simulation.vote_cells import SimCell

if TYPE_CHECKING:
    from tests.simulation.network import End
    from tests.simulation.world import World

__all__ = ["SimRank"]

_STORE_SECONDS = 5.0  # to connect to a store


class SimRank(SimProcess):
    """Process ``incarnation`` of the job. ``store``: the election of the one that it connects to first."""

    def __init__(
        self,
        world: World,
        incarnation: int,
        host: int,
        record: GenerationRecord,
        *,
        newcomer: bool = False,
        store: BallotNumber = FIRST_BALLOT,
    ) -> None:
        super().__init__(world, f"p{incarnation}", host)
        self.incarnation = incarnation
        ballot = BallotNumber(store.epoch, store.owner, 0)
        self.cell = SimCell(world, incarnation, record, ballot)
        self.participant = Participant(
            incarnation, f"h{host}", self.cell, newcomer=newcomer, patience=world.limits.patience, store=ballot
        )
        self.neighbours: Dict[int, SimCell] = {}  #: the cells of other ranks of this host that it has
        self.record: Optional[GenerationRecord] = None if newcomer else record  #: the last that the script was told of
        self.went: Optional[Tuple[int, List[Any]]] = None
        self.failures: List[Message] = []
        self.asked_for: Dict[str, int] = {}
        self._end: Optional[End] = None
        self._armed: Optional[float] = None
        self.script = SimScript(self)

    def start(self, store: SimStore) -> None:
        """Begin: connect to ``store``, then let the script begin."""
        self._connect(store, store.ballot, self._first_connected)

    def _first_connected(self) -> None:
        self._do(lambda machine, now: machine.connected(now))
        self.script.start()

    @property
    def over(self) -> str:
        """Why this process is in the job no more."""
        return self.participant.over

    # --- the connection to the store ---

    def _connect(self, store: SimStore, ballot: BallotNumber, then: Callable[[], None]) -> None:
        world, name = self.world, f"connect {self.incarnation} {store.address}"
        delay = 2 * world.network.delay(self.host, store.process.host, name)
        world.at(world.now + delay, self._connecting, store, ballot, then, world.now)

    def _connecting(self, store: SimStore, ballot: BallotNumber, then: Callable[[], None], began: float) -> None:
        world = self.world
        if not self.alive:
            return
        late = world.now - began > _STORE_SECONDS
        if not late and world.network.is_cut(self.host, store.process.host):
            world.at(world.now + 0.25, self._connecting, store, ballot, then, began)
            return
        stopped = store.process.alive and store.process.resumes_at > world.now
        if not late and stopped:  # it waits at the door
            resumes = min(store.process.resumes_at + 0.001, world.now + 0.2)
            world.at(resumes, self._connecting, store, ballot, then, began)
            return
        if late or not store.open:
            self.run("follow", self._not_connected, ballot)
            return
        end = world.network.connect(f"w{self.incarnation}-{store.address}", self, self, store.process, store)
        if not store.came(end.peer, self.incarnation):
            end.peer.close(world)
            world.counts["a connection was refused"] += 1
            self.run("follow", self._not_connected, ballot)
            return
        self.run(end.channel, self._connected, end, ballot, then)  # nothing is read before that

    def _not_connected(self, ballot: BallotNumber) -> None:
        if self.script.state_name == "starting":  # a newcomer that cannot come ends by itself
            self.touched = True
            self.crash()
            return
        if self.participant.last_store[:2] == ballot[:2]:
            self.world.counts["a store could not be reached"] += 1
            self._do(lambda machine, now: machine.not_connected(now))

    def _connected(self, end: End, ballot: BallotNumber, then: Callable[[], None]) -> None:
        if self.participant.last_store[:2] != ballot[:2]:
            end.close(self.world)  # it follows another one already
            return
        before, self._end = self._end, end
        # What an old store said of ranks, and the new one does not say, does not count.
        self.failures = [failure for failure in self.failures if failure["comm"] != ALL]
        if before is not None:
            before.close(self.world)
        then()

    def arrived(self, end: End, message: Message) -> None:
        """The store said something; an old one may speak until this rank is connected to the next."""
        if end is not self._end:
            return
        kind = message.get("type")
        if kind == "fail":
            self.failures.append(message)
            self.world.checker.verdict(self, message)
            self.script.failed(message)
        elif kind == "probe":
            self.tell_store(self.script.state(message))
        elif kind in Participant.KINDS:
            self._do(lambda machine, now: machine.heard(message, now))

    def ended(self, end: End, why: str) -> None:
        """The connection to a store is closed."""
        if end is self._end:
            self._end = None
            self._do(lambda machine, now: machine.store_lost(now))

    def follows(self, process: SimProcess) -> bool:
        """Whether this rank is connected to the store of ``process``, as far as both know."""
        return self._end is not None and self._end.peer.process is process and self._end.peer.open

    def reset_store(self) -> None:
        """Let the connection to the store break."""
        if self._end is not None and self._end.peer.process is not self:
            self.touched = True
            self.world.network.reset(self._end)

    def tell_store(self, message: Message) -> None:
        """Say something to the store, if there is one."""
        if self._end is not None:
            self.say(self._end, message)

    # --- other processes ---

    def called(self, sender: int, message: Message) -> None:
        """Another member said something."""
        self.world.note(self.name, f"called by {sender}: {message}")
        self._do(lambda machine, now: machine.heard_member(sender, message, now))

    def neighbour_ended(self, rank: SimRank) -> None:
        """The process of a rank of this host has ended, for certain."""
        cell = self.neighbours.get(rank.incarnation)
        if cell is not None:
            self.world.note(self.name, f"sees the end of {rank.name}")
            self._do(lambda machine, now: machine.certain_death(rank.incarnation, cell, "its process ended", now))

    def meet_neighbours(self, record: GenerationRecord) -> None:
        """Swap vote cells with the members that are on this host."""
        for number in record.members:
            other = self.world.ranks[number]
            if other is not self and other.host == self.host and number not in self.neighbours and other.alive:
                self.neighbours[number] = other.cell.mapped()
                other.neighbours.setdefault(self.incarnation, self.cell.mapped())

    def has_ended(self) -> None:
        """See SimProcess."""
        self.script.state_name = "ended"
        self.world.ended(self)

    # --- for the script ---

    def step_finished(self, finished: int) -> None:
        """See Participant."""
        self._do(lambda machine, now: machine.step_finished(finished))

    def wants_next(self, after: int) -> None:
        """See Participant."""
        self._do(lambda machine, now: machine.wants_next(after))

    def installed(self, generation: int, value: str) -> None:
        """See Participant."""
        self._do(lambda machine, now: machine.installed(generation, value))

    def caught_up(self) -> None:
        """See Participant."""
        self._do(lambda machine, now: machine.caught_up())

    def leave(self) -> None:
        """Say goodbye, and end as soon as the store has read it."""
        self.leaves = True
        self.world.data_closed(self)
        delay = self.world.chance.between(0.0, 0.02, f"goodbye {self.name}")
        self.world.at(self.world.now + delay, self.run, "exit", self._say_goodbye)

    def _say_goodbye(self) -> None:
        self.tell_store({"type": "bye", "submitted": {}})
        self.world.at(self.world.now + 0.01, self.run, "exit", self.crash)

    # --- the machine ---

    def _do(self, step: Callable[[Participant, float], Outgoing]) -> None:
        try:
            outgoing = step(self.participant, self.clock())
        except ProtocolError as error:
            self.world.checker.protocol_error(self.name, error)
            return
        for destination, message in outgoing:
            if destination == STORE:
                self.tell_store(message)
            elif destination == SELF:
                self._act(message)
            else:
                self.sending(message, False)
                self.world.call(self, destination, message)
                self.sending(message, True)
        self.world.checker.rank_knows(self)
        self._arm()
        self.script.look()

    def _act(self, message: Message) -> None:
        kind, world = message["type"], self.world
        world.note(self.name, f"does {message}")
        if kind == "break":
            self.script.broken()
        elif kind == "generation":
            self.record = GenerationRecord.parse(message["record"])
            world.checker.told(self, self.record)
        elif kind == "go":
            self.went = message["generation"], message["values"]
            world.checker.went(self, self.went[0], self.went[1])
        elif kind in ("left_out", "end"):
            world.checker.over(self, kind, message["reason"])
            self.script.broken()
        elif kind == "serve":
            delay = world.chance.between(0.001, 0.02, f"serve {message['ballot']}")
            world.at(world.now + delay, self.run, "serve", self._serve, message)
        else:
            ballot = BallotNumber.parse(message["ballot"])
            store = next(store for store in world.stores if store.address == message["address"])
            self._connect(store, ballot, lambda: self._do(lambda machine, now: machine.connected(now)))

    def _serve(self, message: Message) -> None:
        record, ballot = GenerationRecord.parse(message["record"]), BallotNumber.parse(message["ballot"])
        world = self.world
        for store in world.stores:
            if store.process is self and store.open:
                store.close()
        interrupted = bool(message["interrupted"])
        membership = Membership(record, world.limits, ballot, interrupted=interrupted, now=self.clock())
        store = SimStore(world, self, membership, ballot)
        world.checker.elected(store)
        store.turn()
        self._do(lambda machine, now: machine.serving(store.address, now))

    def _arm(self) -> None:
        deadline = self.participant.next_deadline()
        if deadline is None:
            self._armed = None
            return
        moment = max(self.moment(deadline), self.world.now) + 0.001
        if self._armed is None or self._armed > moment or self._armed <= self.world.now:
            self._armed = moment
            self.world.at(moment, self.run, "clock", self._wake, moment)

    def _wake(self, moment: float) -> None:
        if self._armed == moment:
            self._armed = None
            self._do(lambda machine, now: machine.tick(now))
