"""Symbolic memory of all ranks, and the lanes that read and write it. It detects accesses without a defined order.

A *lane* is one channel of one rank. A *cell* is one chunk of one buffer of one rank; its *value* says whose
contributions it holds, and how they were added up. Vector clocks keep the order: a lane's *epoch* is the number of
steps that it has done, so epoch *e* is step *e - 1*. Its clock holds, for every lane, the last epoch that it knows to
be over. ``replay`` does the steps.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

from ddl.plan.canonical_tree import Order
from ddl.plan.checks import PlanError, failure
from ddl.plan.ir import Buffer, Plan, Step

__all__ = ["Cell", "Lane", "Memory", "Value"]


class Value(NamedTuple):
    """What a chunk holds."""

    mask: int  #: a bit for each rank whose contribution is in it; 0: it is undefined
    order: Order  #: how the contributions were added up
    finished: bool = False  #: whether a ``final`` step has produced it


_UNDEFINED = Value(0, ())


class Lane:
    """One channel of one rank: its next step, what it knows of the other lanes, and what it has done."""

    def __init__(self, number: int, lanes: int, plan: Plan, channel: int) -> None:
        self.number, self.plan, self.channel = number, plan, channel
        self.steps = plan.channels[channel]
        self.next = 0
        self.clock = [0] * lanes
        self.depth = 0  # length of the longest chain of messages and meets that led here
        self.notices: List[Tuple[int, List[int], int]] = []  # phase, clock, depth
        self.depths: List[int] = []  # after each step that is done

    @property
    def rank(self) -> int:
        """The rank whose channel this is."""
        return self.plan.rank

    def learn(self, clock: List[int], depth: int) -> None:
        """Note that everything that is over in ``clock`` is over before my current step."""
        self.clock = [own if own > theirs else theirs for own, theirs in zip(self.clock, clock)]
        self.depth = max(self.depth, depth)

    def clock_after(self) -> List[int]:
        """Return the clock of a lane that knows that my current step is over."""
        clock = self.clock[:]
        clock[self.number] = self.next + 1
        return clock

    def failure(self, what: str) -> PlanError:
        """Return the error about my current step."""
        return failure(self.plan, self.channel, self.next, what)


class Cell:
    """One chunk of one buffer: its value, which lane wrote it last, and which have read it since."""

    __slots__ = ("epoch", "readers", "sends", "value", "writer")

    def __init__(self, value: Value) -> None:
        self.value = value
        self.writer = -1  # lane number; -1 is the caller, before the plan starts
        self.epoch = 0  # of the writer
        self.readers: List[Tuple[int, int]] = []  # (lane number, epoch); of a message: the lane that receives it
        self.sends = 0  # messages that read this cell and are not received yet


class Memory:
    """All cells. With ``in_place``, INPUT and OUTPUT of the plans that allow it are the same cells."""

    def __init__(self, plans: Sequence[Plan], lanes: Sequence[Lane], in_place: bool) -> None:
        self._lanes = lanes
        self._full = (1 << len(plans)) - 1
        self._lanes_of: List[List[Lane]] = [[] for _ in plans]
        for lane in lanes:
            self._lanes_of[lane.rank].append(lane)
        self._cells: List[Tuple[Dict[int, Cell], ...]] = []
        for plan in plans:
            given = {chunk: Cell(Value(1 << plan.rank, plan.rank)) for chunk in plan.input}
            aliased = in_place and plan.in_place
            result = given if aliased else {chunk: Cell(_UNDEFINED) for chunk in plan.output}
            self._cells.append((given, result, {chunk: Cell(_UNDEFINED) for chunk in plan.scratch}))
        #: For each rank, the last step of each foreign lane that touched its INPUT or OUTPUT.
        self._touched: List[Dict[int, int]] = [{} for _ in plans]

    def value(self, rank: int, chunk: int) -> Value:
        """Return what ``rank``'s OUTPUT holds for ``chunk``."""
        return self._cells[rank][Buffer.OUTPUT][chunk].value

    def ranks(self, mask: int) -> List[int]:
        """Spell out a bit mask of ranks."""
        return [rank for rank in range(len(self._cells)) if mask >> rank & 1]

    def read(self, lane: Lane, step: Step, owner: int, buffer: Buffer) -> List[Value]:
        """Read the chunks of ``step`` and return their values."""
        cells = self._reach(lane, step, owner, buffer)
        number, epoch = lane.number, lane.next + 1
        for cell in cells:
            cell.readers.append((number, epoch))
        return self._values(lane, step, owner, buffer, cells)

    def send(self, lane: Lane, step: Step) -> Tuple[List[Cell], List[Value]]:
        """Begin to read the chunks of a SEND; ``arrived`` ends the read. Return the cells and their values."""
        cells = self._reach(lane, step, lane.rank, step.src)
        for cell in cells:
            cell.sends += 1
        return cells, self._values(lane, step, lane.rank, step.src, cells)

    def arrived(self, lane: Lane, cells: List[Cell]) -> None:
        """End the read of a message that ``lane`` has received."""
        number, epoch = lane.number, lane.next + 1
        for cell in cells:
            cell.sends -= 1
            cell.readers.append((number, epoch))

    def send_complete(self, lane: Lane, cells: List[Cell], reader: Tuple[int, int]) -> None:
        """Note that ``lane`` has waited for its message: the read by ``reader``, its receiver, counts as its own."""
        for cell in cells:
            cell.readers = [(lane.number, lane.next + 1) if known == reader else known for known in cell.readers]

    def write(self, lane: Lane, step: Step, owner: int, buffer: Buffer, values: List[Value]) -> None:
        """Check that no other lane may still be using the chunks of ``step``, and store ``values`` in them."""
        clock, number, epoch = lane.clock, lane.number, lane.next + 1
        for chunk, (cell, value) in enumerate(zip(self._reach(lane, step, owner, buffer), values), step.first):
            if cell.sends:
                raise lane.failure(f"writes chunk {chunk} of {_where(owner, buffer)} while it may still be sent")
            if cell.writer >= 0 and clock[cell.writer] < cell.epoch:
                raise self._race(lane, f"writes chunk {chunk} of {_where(owner, buffer)}", cell.writer, cell.epoch)
            for reader, read in cell.readers:
                if clock[reader] < read and reader != number:
                    raise self._race(lane, f"writes chunk {chunk} of {_where(owner, buffer)}", reader, read)
            cell.readers = []
            cell.writer, cell.epoch = number, epoch
            cell.value = self._finish(lane, chunk, value) if step.final else value

    def copy(self, lane: Lane, step: Step) -> None:
        """Do a COPY within one rank. If both buffers are the same memory, nothing moves."""
        values = self.read(lane, step, lane.rank, step.src)
        source, target = (self._cells[lane.rank][buffer] for buffer in (step.src, step.dst))
        if source is not target:
            self.write(lane, step, lane.rank, step.dst, values)
        elif step.final:
            for chunk, value in enumerate(values, step.first):
                source[chunk].value = self._finish(lane, chunk, value)

    def add(self, lane: Lane, step: Step, operands: Sequence[List[Value]]) -> List[Value]:
        """Reduce lists of values in the given order. A contribution that is in two of them is an error."""
        sums = []
        for chunk, values in enumerate(zip(*operands), step.first):
            mask = 0
            for value in values:
                if mask & value.mask:
                    twice = self.ranks(mask & value.mask)
                    raise lane.failure(f"adds the contributions of ranks {twice} to chunk {chunk} twice")
                mask |= value.mask
            sums.append(Value(mask, tuple(value.order for value in values)))
        return sums

    def check_end(self, plan: Plan, clock: List[int]) -> None:
        """Check that no lane touches INPUT or OUTPUT of a rank after its plan ends; ``clock`` is its clock then."""
        for number, epoch in self._touched[plan.rank].items():
            if clock[number] < epoch:
                who = self._lane_text(number, epoch)
                raise failure(plan, None, None, f"the plan may end before {who} is done with this rank's memory")

    def _reach(self, lane: Lane, step: Step, owner: int, buffer: Buffer) -> List[Cell]:
        """Return the cells of a step's chunks. For another rank's, check that its first NOTIFY is known."""
        if owner != lane.rank:
            theirs = [other for other in self._lanes_of[owner] if other.notices]
            if not any(other.notices[0][1][other.number] <= lane.clock[other.number] for other in theirs):
                raise lane.failure(f"touches {_where(owner, buffer)} without knowing of that rank's first NOTIFY")
            if buffer is not Buffer.SCRATCH:
                self._touched[owner][lane.number] = lane.next + 1
        cells = self._cells[owner][buffer]
        try:
            return [cells[chunk] for chunk in range(step.first, step.first + step.count)]
        except KeyError as missing:
            raise lane.failure(f"chunk {missing} is not in {_where(owner, buffer)}") from None

    def _values(self, lane: Lane, step: Step, owner: int, buffer: Buffer, cells: List[Cell]) -> List[Value]:
        """Check that the values of ``cells`` are defined and were written before this step, and return them."""
        clock = lane.clock
        for chunk, cell in enumerate(cells, step.first):
            if cell.writer >= 0 and clock[cell.writer] < cell.epoch:
                raise self._race(lane, f"reads chunk {chunk} of {_where(owner, buffer)}", cell.writer, cell.epoch)
            if not cell.value.mask:
                raise lane.failure(f"reads chunk {chunk} of {_where(owner, buffer)}, which is undefined")
        return [cell.value for cell in cells]

    def _finish(self, lane: Lane, chunk: int, value: Value) -> Value:
        if value.finished:
            raise lane.failure(f"is final for chunk {chunk}, which is already finished")
        if value.mask != self._full:
            ranks = self.ranks(value.mask)
            raise lane.failure(f"is final for chunk {chunk}, which only has the contributions of ranks {ranks}")
        return value._replace(finished=True)

    def _race(self, lane: Lane, what: str, number: int, epoch: int) -> PlanError:
        return lane.failure(f"{what} without a defined order with {self._lane_text(number, epoch)}")

    def _lane_text(self, number: int, epoch: int) -> str:
        lane = self._lanes[number]
        return f"rank {lane.rank} channel {lane.channel} step {epoch - 1}"


def _where(owner: int, buffer: Buffer) -> str:
    return f"{Buffer(buffer).name} of rank {owner}"
