"""A lane of the native core in virtual time: operations, pieces, slots, channels and links, of all ranks.

It works in the same order as the core (csrc/engine/lane.cc, executor.cc). A large operation is cut into pieces. Each
piece runs the whole plan on its part of the buffer, in the next slot in turn, as soon as that slot is idle. A receive
and an await block their channel; a send does not, but a piece ends only when its own messages are sent. Messages of a
slot to the same peer are sent one after the other.

Where arrays are on GPUs, all pieces of an operation are copied down, one after the other, from its submission on. A
piece begins when it has arrived, and is copied up when it has ended, as csrc/device/transfer.h does.

It is simpler than the core: all chunks of a piece have the same length (the core rounds to 64 bytes), a processor with
several tasks divides its time evenly, and a message is read only when all of it has arrived.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Callable, DefaultDict, Deque, Dict, List, Mapping, Sequence, Tuple

from ddl.errors import ConfigError, InvalidState
from ddl.plan import build
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import Line
from ddl.tuning.simulate.compiled import AWAIT, NOTIFY, RECEIVE, SEND, WORK, Action, Key, Script, compile_plans
from ddl.tuning.simulate.cost import Machine
from ddl.tuning.simulate.fluid import Fluid, Needs
from ddl.tuning.simulate.symmetry import Symmetry

__all__ = ["STAGING", "Lateness", "SimulatedLane", "SimulatedOperation", "Span"]

STAGING = -1  #: instead of a dimension: between a GPU and its host

MOST_STEPS = 4_000_000  #: of all simulated ranks and pieces; they take a minute or two
_CHUNK_ALIGNMENT = 64  # bytes; csrc/engine/communicator.cc rounds pieces so that chunks have a multiple of this


@dataclass(frozen=True)
class SimulatedOperation:
    """One all-reduce of ``nbytes``, submitted ``ready_s`` after the beginning."""

    nbytes: int
    ready_s: float = 0.0


@dataclass(frozen=True)
class Lateness:
    """The delay of a straggler: it submits at ``factor`` times the time of the others, plus ``plus_s`` seconds."""

    plus_s: float = 0.0
    factor: float = 1.0

    def of(self, seconds: float) -> float:
        """Return when the straggler does what the others do at ``seconds``."""
        return seconds * self.factor + self.plus_s


@dataclass(frozen=True)
class Span:
    """From ``begin`` to ``end``, a rank worked on operation number ``operation`` in ``dimension``. In seconds.

    ``dimension``: STAGING for copies between a GPU and its host.
    """

    operation: int
    dimension: int
    begin: float
    end: float


class SimulatedLane:
    """One lane of all ranks: the operations of one line of the selection, and the links that they use."""

    def __init__(
        self,
        machine: Machine,
        topology: Topology,
        symmetry: Symmetry,
        line: Line,
        operations: Mapping[int, SimulatedOperation],
        stragglers: Mapping[int, Lateness],
        watch: Sequence[int],
    ) -> None:
        self.fluid = Fluid()
        self.machine = machine
        self.line = line
        self.messages = 0
        self.operations = dict(operations)
        first = build(Collective.ALLREDUCE, line.algorithm, topology, symmetry.representatives[0])
        unit = _CHUNK_ALIGNMENT * first.chunks
        self._piece_bytes = max(line.piece_bytes // unit, 1) * unit if line.piece_bytes else line.max_bytes
        pieces = sum(len(self.pieces(number)) for number in self.operations)
        steps = sum(map(len, first.channels)) * pieces * len(symmetry.representatives)
        if steps > MOST_STEPS:
            raise ConfigError(
                f"{line.algorithm} on {topology}: {len(symmetry.representatives)} different ranks have {steps:.2g} "
                f"steps in all, more than {MOST_STEPS:.2g}; simulate fewer ranks, or other dimensions"
            )
        self._symmetry = symmetry
        watched = {symmetry.representative(rank) for rank in watch}
        scripts = compile_plans(machine, topology, symmetry, line.algorithm, self.fluid)
        self.ranks = {
            rank: _Rank(self, rank, script, stragglers.get(rank, Lateness()), rank in watched)
            for rank, script in scripts.items()
        }
        self.links: DefaultDict[Tuple[int, Key], _MessageQueue] = defaultdict(lambda: _MessageQueue(self.fluid))

    def of(self, rank: int) -> _Rank:
        """Return the rank that was simulated for ``rank``."""
        return self.ranks[self._symmetry.representative(rank)]

    def pieces(self, number: int) -> List[float]:
        """Return the bytes of the pieces that an operation is cut into."""
        size, each = self.operations[number].nbytes, self._piece_bytes
        return [min(each, size - first) for first in range(0, size, each)] or [0.0]

    def run(self) -> None:
        """Run all operations to their end. May be called once."""
        for rank in self.ranks.values():
            rank.begin()
        self.fluid.run()
        for rank in self.ranks.values():
            if len(rank.ends) < len(self.operations):
                raise InvalidState(
                    f"simulate: rank {rank.rank} never ends; a plan is wrong: see `ddl plan --verify`, and report it"
                )


class _Rank:
    """One rank's lane: operations in the order of their submission, and slots that take pieces in turn."""

    def __init__(self, lane: SimulatedLane, rank: int, script: Script, late: Lateness, watched: bool) -> None:
        self.lane, self.rank, self.script, self._late = lane, rank, script, late
        self.spans: List[Span] = []
        self.watched = watched
        self.ends: Dict[int, float] = {}
        self._queue: Deque[Tuple[int, float]] = deque()  # (operation, bytes of a piece), not begun
        self._open: Dict[int, int] = {}  # pieces that have not ended
        self._slots = [_Slot(self, number) for number in range(lane.line.in_flight)]
        self._next_slot = 0
        self._under_way: Dict[Tuple[int, int], int] = {}  # spans by (operation, dimension)
        self._staged = lane.machine.gpus is not None
        self._down, self._up = _CopyQueue(self, script.down), _CopyQueue(self, script.up)
        self._arrived = 0  # pieces in ``_queue`` that may begin

    def begin(self) -> None:
        for number, operation in self.lane.operations.items():
            self.lane.fluid.after(self._late.of(operation.ready_s), lambda n=number: self._submit(n))  # type: ignore[misc]

    def slot(self, number: int) -> _Slot:
        return self._slots[number]

    def _submit(self, number: int) -> None:
        pieces = self.lane.pieces(number)
        self._open[number] = len(pieces)
        self._queue.extend((number, nbytes) for nbytes in pieces)
        if not self._staged:
            self._arrived += len(pieces)
            self.admit()
            return
        for nbytes in pieces:
            self._down.add(number, nbytes, self._arrive)

    def _arrive(self) -> None:
        self._arrived += 1
        self.admit()

    def admit(self) -> None:
        """Begin pieces in order, while the next one has arrived and the next slot is idle."""
        while self._arrived:
            slot = self._slots[self._next_slot]
            if not slot.idle:
                return
            self._next_slot = (self._next_slot + 1) % len(self._slots)
            self._arrived -= 1
            slot.start(*self._queue.popleft())

    def ended(self, number: int, nbytes: float) -> None:
        """Let the result of a piece leave, and begin others."""
        if self._staged:
            self._up.add(number, nbytes, lambda: self._left(number))
        else:
            self._left(number)
        self.admit()

    def _left(self, number: int) -> None:
        self._open[number] -= 1
        if self._open[number] == 0:
            self.ends[number] = self.lane.fluid.now

    def note(self, operation: int, dimension: int, begin: float) -> None:
        """Record a span that ends now; join it with the span before if they overlap."""
        if not self.watched:
            return
        at = self._under_way.get((operation, dimension))
        now = self.lane.fluid.now
        if at is not None and self.spans[at].end >= begin:
            self.spans[at] = Span(operation, dimension, self.spans[at].begin, now)
        else:
            self._under_way[operation, dimension] = len(self.spans)
            self.spans.append(Span(operation, dimension, begin, now))


class _CopyQueue:
    """Copies between a rank's GPU and its host in one direction, one after the other."""

    def __init__(self, rank: _Rank, needs: Needs) -> None:
        self._rank, self._needs = rank, needs
        self._queue: Deque[Tuple[int, float, Callable[[], None]]] = deque()
        self._busy = False

    def add(self, operation: int, nbytes: float, done: Callable[[], None]) -> None:
        """Copy so much behind what there is, and call ``done`` when the end is seen."""
        self._queue.append((operation, nbytes, done))
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        operation, nbytes, done = self._queue.popleft()
        self._busy = True
        machine, fluid = self._rank.lane.machine, self._rank.lane.fluid
        latency = 0.0 if machine.gpus is None else machine.gpus.latency_s
        begin = fluid.now

        def copied() -> None:
            self._rank.note(operation, STAGING, begin)
            self._busy = False
            if self._queue:
                self._begin()
            fluid.after(latency, done)

        fluid.flow(nbytes, self._needs, copied)


class _Slot:
    """Runs one piece at a time: all channels of the script on ``nbytes``."""

    def __init__(self, rank: _Rank, number: int) -> None:
        self.rank, self.number = rank, number
        self.idle = True
        self.turn = 0
        self.reached: Tuple[int, int] = (0, 0)  # (turn, phase): the last one that was announced to the host
        self.waiting: List[Callable[[], None]] = []  # to be called when ``reached`` changes
        self.operation = -1
        self.nbytes = 0.0
        self._running = 0  # channels
        self._unsent = 0  # messages

    def start(self, operation: int, nbytes: float) -> None:
        self.idle = False
        self.turn += 1
        self.operation, self.nbytes = operation, nbytes
        channels = self.rank.script.channels
        self._running = len(channels)
        for actions in channels:
            _Channel(self, actions).go()

    def sending(self) -> None:
        self._unsent += 1

    def sent(self) -> None:
        self._unsent -= 1
        self._end_if_done()

    def channel_ended(self) -> None:
        self._running -= 1
        self._end_if_done()

    def notify(self, phase: int) -> None:
        announced = (self.turn, phase)

        def announce() -> None:
            self.reached = max(self.reached, announced)
            waiting, self.waiting = self.waiting, []
            for go in waiting:
                go()

        memory = self.rank.lane.machine.memory
        self.rank.lane.fluid.after(0.0 if memory is None else memory.latency_s, announce)

    def _end_if_done(self) -> None:
        if self._running == 0 and self._unsent == 0 and not self.idle:
            self.idle = True
            self.rank.ended(self.operation, self.nbytes)


class _Channel:
    """One channel of one piece: its next action."""

    def __init__(self, slot: _Slot, actions: Sequence[Action]) -> None:
        self._slot, self._actions = slot, actions
        self._next = 0
        self._prepared = False  # whether the core has begun its part of the next action
        self._since = 0.0  # when it began, in seconds

    def go(self) -> None:
        """Act until an action must wait. What it waits for calls this again."""
        while self._next < len(self._actions):
            action = self._actions[self._next]
            if not self._done(action):
                return
            self._next += 1
            self._prepared = False
        self._slot.channel_ended()

    def _done(self, action: Action) -> bool:
        slot, rank, lane = self._slot, self._slot.rank, self._slot.rank.lane
        if action.kind == NOTIFY:
            slot.notify(action.phase)
            return True
        if action.kind == AWAIT:
            wanted = (slot.turn, action.phase)
            for peer in action.peers:
                other = lane.ranks[peer].slot(slot.number)
                if other.reached < wanted:
                    other.waiting.append(self.go)
                    return False
            return True
        if action.kind == WORK:
            if self._prepared:
                rank.note(slot.operation, action.dimension, self._since)
                return True
            return self._occupy(action.share * slot.nbytes, action.needs)
        link = lane.links[slot.number, action.key]
        if action.kind == RECEIVE and not self._prepared and not link.has_arrived(self.go):
            return False
        if not self._prepared and rank.script.overhead:
            return self._occupy(lane.machine.core.overhead_s, rank.script.overhead)
        if action.kind == SEND:
            lane.messages += 1
            slot.sending()
            link.send(action.share * slot.nbytes, action, slot)
        return True

    def _occupy(self, amount: float, needs: Needs) -> bool:
        """Keep the core busy, then try the same action again."""
        lane = self._slot.rank.lane
        self._prepared, self._since = True, lane.fluid.now
        lane.fluid.flow(amount, needs, self.go)
        return False


class _MessageQueue:
    """Messages of one slot from one rank to another: they are sent one after the other, and arrive in this order."""

    def __init__(self, fluid: Fluid) -> None:
        self._fluid = fluid
        self._queue: Deque[Tuple[float, Action, _Slot]] = deque()
        self._busy = False
        self._arrived = 0  # messages that are not received yet
        self._receiver: List[Callable[[], None]] = []

    def has_arrived(self, then: Callable[[], None]) -> bool:
        """Take a message that has arrived; if there is none, call ``then`` when one arrives."""
        if self._arrived:
            self._arrived -= 1
            return True
        self._receiver.append(then)
        return False

    def send(self, nbytes: float, action: Action, slot: _Slot) -> None:
        self._queue.append((nbytes, action, slot))
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        nbytes, action, slot = self._queue.popleft()
        self._busy = True
        operation, begin = slot.operation, self._fluid.now

        def sent() -> None:
            self._busy = False
            if self._queue:
                self._begin()
            slot.sent()
            self._fluid.after(action.latency, arrived)

        def arrived() -> None:
            slot.rank.note(operation, action.dimension, begin)
            self._arrived += 1
            if self._receiver:
                self._receiver.pop()()

        self._fluid.flow(nbytes, action.needs, sent)
