"""A second opinion on plans: runs them on real values, in a random order of events, as slowly as the contract allows.

It knows nothing of clocks and proofs: a message reads the sender's memory only when it is received, so that a plan
which overwrites it too soon computes a wrong value. Tests compare what ``verify`` says with what comes out here.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any, Callable, Deque, Dict, List, Sequence, Tuple

from ddl.plan import Buffer, Kind, Plan, Step

Add = Callable[[Any, Any], Any]

#: Stands for memory that nobody has written.
UNDEFINED = object()


class Stuck(Exception):
    """No rank can go on."""


class Interpreter:
    """Memory and progress of all ranks; ``add`` combines two values."""

    def __init__(self, plans: Sequence[Plan], inputs: Sequence[Dict[int, Any]], add: Add) -> None:
        self.plans, self.add = plans, add
        self.memory: Dict[Tuple[int, Buffer, int], Any] = {}
        self.aliased = [False] * len(plans)
        for plan, values in zip(plans, inputs):
            for chunk in plan.input:
                self.memory[plan.rank, Buffer.INPUT, chunk] = values[chunk]
        self.next = {(plan.rank, c): 0 for plan in plans for c in range(len(plan.channels))}
        self.phase: Dict[Tuple[int, int], int] = defaultdict(int)
        self.queues: Dict[Tuple[int, int, int], Deque[Step]] = defaultdict(deque)

    def alias(self) -> None:
        """Make INPUT and OUTPUT the same memory where the plans allow it."""
        self.aliased = [plan.in_place for plan in self.plans]

    def _key(self, rank: int, buffer: Buffer, chunk: int) -> Tuple[int, Buffer, int]:
        same = buffer is Buffer.OUTPUT and self.aliased[rank]
        return rank, Buffer.INPUT if same else buffer, chunk

    def _get(self, rank: int, buffer: Buffer, step: Step) -> List[Any]:
        run = range(step.first, step.first + step.count)
        return [self.memory.get(self._key(rank, buffer, chunk), UNDEFINED) for chunk in run]

    def _put(self, rank: int, step: Step, values: List[Any]) -> None:
        for chunk, value in enumerate(values, step.first):
            self.memory[self._key(rank, step.dst, chunk)] = value

    def _sum(self, left: List[Any], right: List[Any]) -> List[Any]:
        return [UNDEFINED if UNDEFINED in (a, b) else self.add(a, b) for a, b in zip(left, right)]

    def _step(self, rank: int, channel: int, step: Step) -> bool:
        """Do one step if it can be done now."""
        if step.after_sends and any(self.queues[rank, plan.rank, channel] for plan in self.plans):
            return False
        if step.kind is Kind.SEND:
            self.queues[rank, step.peers[0], channel].append(step)
        elif step.kind in (Kind.RECV, Kind.RECV_REDUCE):
            queue = self.queues[step.peers[0], rank, channel]
            if not queue:
                return False
            values = self._get(step.peers[0], queue[0].src, queue.popleft())
            if step.kind is Kind.RECV_REDUCE:
                values = self._sum(values, self._get(rank, step.src, step))
            self._put(rank, step, values)
        elif step.kind is Kind.REDUCE_FROM:
            own = step.dst if step.onto else step.src
            first, *rest = sorted([(rank, own), *((peer, step.src) for peer in step.peers)])
            values = self._get(*first, step)
            for other, buffer in rest:
                values = self._sum(values, self._get(other, buffer, step))
            self._put(rank, step, values)
        elif step.kind is Kind.COPY_FROM:
            self._put(rank, step, self._get(step.peers[0], step.src, step))
        elif step.kind is Kind.COPY_TO:
            for peer in step.peers:
                self._put(peer, step, self._get(rank, step.src, step))
        elif step.kind is Kind.COPY:
            self._put(rank, step, self._get(rank, step.src, step))
        elif step.kind is Kind.NOTIFY:
            self.phase[rank, channel] = step.phase
        else:
            return all(self.phase[peer, channel] >= step.phase for peer in step.peers)
        return True

    def run(self, order: random.Random) -> List[List[Any]]:
        """Do everything in an order drawn from ``order``; return what each rank finds when its plan ends."""
        steps = {(plan.rank, c): channel for plan in self.plans for c, channel in enumerate(plan.channels)}
        outputs: Dict[int, List[Any]] = {}
        waiting = dict(self.next)
        while waiting:
            lanes = list(waiting)
            order.shuffle(lanes)
            moved = False
            for lane in lanes:
                # A burst lets one rank run far ahead of the others, as a descheduled peer would.
                for _ in range(order.choice((1, 1, 2, 1000))):
                    if self.next[lane] == len(steps[lane]):
                        waiting.pop(lane)
                        moved = True
                        break
                    if not self._step(*lane, steps[lane][self.next[lane]]):
                        break
                    self.next[lane] += 1
                    moved = True
            if not moved:
                raise Stuck
            for plan in self.plans:
                if plan.rank not in outputs and not any(rank == plan.rank for rank, _ in waiting):
                    keys = [self._key(plan.rank, Buffer.OUTPUT, chunk) for chunk in plan.output]
                    outputs[plan.rank] = [self.memory.get(key, UNDEFINED) for key in keys]
        return [outputs[plan.rank] for plan in self.plans]


def run(
    plans: Sequence[Plan],
    inputs: Sequence[Dict[int, Any]],
    add: Add,
    *,
    seed: int,
    in_place: bool = False,
) -> List[List[Any]]:
    """Run plans once and return every rank's OUTPUT, in block order."""
    interpreter = Interpreter(plans, inputs, add)
    if in_place:
        interpreter.alias()
    return interpreter.run(random.Random(seed))
