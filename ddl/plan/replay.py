"""Replays the plans of all ranks on symbolic memory: the part of ``verify`` that needs an order of events.

Plans have no branches and messages stay in order, so which step waits for which does not depend on speed. It is
therefore enough to replay one order of events, with a vector clock per lane (see ``memory``), to detect the errors of
every order. A rank that awaits a NOTIFY knows that all steps before it are over; the receiver of a message knows this
of its SEND. ``after_sends`` may wait until the receivers have the messages, or may not, so the sender learns nothing
about them. The executor ends a plan only when its own sends are complete; nothing here checks that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Callable, DefaultDict, Deque, Dict, List, Optional, Sequence, Set, Tuple

from ddl.plan.checks import PlanError, failure
from ddl.plan.ir import Kind, Plan, Step
from ddl.plan.memory import Cell, Lane, Memory, Value

__all__ = ["Replay"]

#: What a lane waits for: the number of another lane, and its "message", "receipt" or "notice".
_Wait = Tuple[int, str]


class _SentMessage:
    """A message that was sent."""

    __slots__ = ("cells", "clock", "depth", "index", "reader", "step", "values")

    def __init__(self, lane: Lane, step: Step, cells: List[Cell], values: List[Value]) -> None:
        self.index, self.step, self.cells, self.values = lane.next, step, cells, values
        self.clock, self.depth = lane.clock_after(), lane.depth + 1
        self.reader: Optional[Tuple[int, int]] = None  # lane number and epoch of the step that received it


class Replay:
    """All lanes of one collective, and their memory. ``run`` may be called once."""

    def __init__(self, plans: Sequence[Plan], in_place: bool) -> None:
        self._plans = plans
        places = [(plan, channel) for plan in plans for channel in range(len(plan.channels))]
        self.lanes = [Lane(number, len(places), *place) for number, place in enumerate(places)]
        self._lane_at = {(lane.rank, lane.channel): lane for lane in self.lanes}
        self.memory = Memory(plans, self.lanes, in_place)
        self._queues: DefaultDict[Tuple[int, int, int], Deque[_SentMessage]] = defaultdict(deque)
        self._sent: DefaultDict[int, List[_SentMessage]] = defaultdict(list)  # by lane number; not known to be complete
        self._waiting: DefaultDict[_Wait, List[Lane]] = defaultdict(list)
        self._ready: Deque[Lane] = deque(self.lanes)
        self._do: Dict[Kind, Callable[[Lane, Step], Optional[_Wait]]] = {
            Kind.SEND: self._send,
            Kind.RECV: self._receive,
            Kind.RECV_REDUCE: self._receive,
            Kind.REDUCE_FROM: self._reduce_from,
            Kind.COPY_FROM: self._copy_from,
            Kind.COPY_TO: self._copy_to,
            Kind.COPY: self._copy,
            Kind.NOTIFY: self._notify,
            Kind.AWAIT: self._await,
        }

    def run(self) -> None:
        """Do all steps of all lanes. Raises ``PlanError``."""
        blocked: Dict[int, _Wait] = {}
        while self._ready:
            lane = self._ready.popleft()
            blocked.pop(lane.number, None)
            while lane.next < len(lane.steps):
                step = lane.steps[lane.next]
                wait = self._after_sends(lane) if step.after_sends else None
                wait = wait or self._do[step.kind](lane, step)
                if wait is not None:
                    blocked[lane.number] = wait
                    self._waiting[wait].append(lane)
                    break
                lane.next += 1
                lane.depths.append(lane.depth)
                lane.clock[lane.number] = lane.next
        if blocked:
            raise self._deadlock(blocked)
        for (sender, receiver, channel), queue in self._queues.items():
            if queue:
                what = f"rank {receiver} never receives this message"
                raise failure(self._plans[sender], channel, queue[0].index, what)
        for plan in self._plans:
            self.memory.check_end(plan, self.end_clock(plan.rank))

    def end_clock(self, rank: int) -> List[int]:
        """Return the clock of ``rank`` at the end of its plan: for each lane, the last epoch known to be over."""
        end = [0] * len(self.lanes)
        for channel in range(len(self._plans[rank].channels)):
            clock = self._lane_at[rank, channel].clock
            end = [max(pair) for pair in zip(end, clock)]
        return end

    # Steps: each returns what it waits for, or None when it is done.

    def _after_sends(self, lane: Lane) -> Optional[_Wait]:
        """Wait until all messages of ``lane`` are received: the longest that a transport may need its memory."""
        for message in self._sent[lane.number]:
            if message.reader is None:
                return self._peer(lane, message.step.peers[0]).number, "receipt"
        for message in self._sent.pop(lane.number, ()):
            if message.reader is not None:
                self.memory.send_complete(lane, message.cells, message.reader)
        return None

    def _send(self, lane: Lane, step: Step) -> Optional[_Wait]:
        message = _SentMessage(lane, step, *self.memory.send(lane, step))
        self._queues[lane.rank, step.peers[0], lane.channel].append(message)
        self._sent[lane.number].append(message)
        self._wake((lane.number, "message"))
        return None

    def _receive(self, lane: Lane, step: Step) -> Optional[_Wait]:
        queue = self._queues[step.peers[0], lane.rank, lane.channel]
        if not queue:
            return self._peer(lane, step.peers[0]).number, "message"
        message = queue.popleft()
        sent = message.step
        if sent.count != step.count or (step.count and sent.first != step.first):
            what = f"expects chunks {_run(step)}, but step {message.index} of rank {step.peers[0]} sends {_run(sent)}"
            raise lane.failure(what)
        lane.learn(message.clock, message.depth)
        self.memory.arrived(lane, message.cells)
        message.reader = lane.number, lane.next + 1
        self._wake((lane.number, "receipt"))
        values = message.values
        if step.kind is Kind.RECV_REDUCE:
            own = self.memory.read(lane, step, lane.rank, step.src)
            operands = [values, own] if step.peers[0] < lane.rank else [own, values]
            values = self.memory.add(lane, step, operands)
        self.memory.write(lane, step, lane.rank, step.dst, values)
        return None

    def _reduce_from(self, lane: Lane, step: Step) -> Optional[_Wait]:
        sources = {rank: step.src for rank in step.peers}
        sources[lane.rank] = step.dst if step.onto else step.src
        operands = [self.memory.read(lane, step, rank, buffer) for rank, buffer in sorted(sources.items())]
        self.memory.write(lane, step, lane.rank, step.dst, self.memory.add(lane, step, operands))
        return None

    def _copy_from(self, lane: Lane, step: Step) -> Optional[_Wait]:
        values = self.memory.read(lane, step, step.peers[0], step.src)
        self.memory.write(lane, step, lane.rank, step.dst, values)
        return None

    def _copy_to(self, lane: Lane, step: Step) -> Optional[_Wait]:
        values = self.memory.read(lane, step, lane.rank, step.src)
        for peer in step.peers:
            self.memory.write(lane, step, peer, step.dst, values)
        return None

    def _copy(self, lane: Lane, step: Step) -> Optional[_Wait]:
        self.memory.copy(lane, step)
        return None

    def _notify(self, lane: Lane, step: Step) -> Optional[_Wait]:
        lane.notices.append((step.phase, lane.clock_after(), lane.depth + 1))
        self._wake((lane.number, "notice"))
        return None

    def _await(self, lane: Lane, step: Step) -> Optional[_Wait]:
        notices = []
        for peer in step.peers:
            other = self._peer(lane, peer)
            # Take the first notice that is enough: when this wait ends, a later one may not have been sent yet.
            notice = next((n for n in other.notices if n[0] >= step.phase), None)
            if notice is None:
                return other.number, "notice"
            notices.append(notice)
        for _, clock, depth in notices:
            lane.learn(clock, depth)
        return None

    # Waits and deadlocks.

    def _peer(self, lane: Lane, rank: int) -> Lane:
        """Return the lane of ``rank`` that has the same channel as ``lane``."""
        try:
            return self._lane_at[rank, lane.channel]
        except KeyError:
            raise lane.failure(f"waits for rank {rank}, which has no channel {lane.channel}") from None

    def _wake(self, wait: _Wait) -> None:
        self._ready.extend(self._waiting.pop(wait, ()))

    def _deadlock(self, blocked: Dict[int, _Wait]) -> PlanError:
        """Follow the waits from the first blocked lane to a lane that was seen before, or that has ended."""
        start = lane = self.lanes[min(blocked)]
        texts: List[str] = []
        seen: Set[int] = set()
        while lane.number in blocked and lane.number not in seen:
            seen.add(lane.number)
            number, by = blocked[lane.number]
            events = {"message": "a message from", "receipt": "its message to be received by"}
            event = events.get(by, f"phase {lane.steps[lane.next].phase} of")
            place = f"rank {lane.rank} channel {lane.channel} step {lane.next}"
            lane = self.lanes[number]
            texts.append(f"{place} waits for {event} rank {lane.rank}")
        ending = "which closes a cycle" if lane.number in seen else f"but rank {lane.rank} has ended"
        return start.failure(f"deadlock: {', '.join(texts)}, {ending}")


def _run(step: Step) -> str:
    return f"[{step.first}, {step.first + step.count})" if step.count else "none"
