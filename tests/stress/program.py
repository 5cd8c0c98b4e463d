"""One rank of the stress test: runs a random sequence of operations and checks every result.

Buffers come from a pool and go back the moment an operation has ended: the next one overwrites them at once, so that a
peer that still reads them shows. Delays, and when a background operation is waited for and how, are drawn by each rank
for itself.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
from stress.operations import Operation, Values, sequence

import ddl

#: Background operations that one rank leaves under way at most.
UNDER_WAY = 12
#: The core's own watchdog (DDL_TIMEOUT) ends what hangs, so a poll never has to give up by itself.
_POLL_S = 0.001


class UnderWay(NamedTuple):
    """A background operation: what must not be touched until ``wait`` has returned its result."""

    operation: Operation
    buffers: Tuple[np.ndarray, ...]
    wait: Callable[[], Any]


class Pool:
    """Buffers by type, length and kind of memory; the one given back last is given out first."""

    def __init__(self) -> None:
        self._free: Dict[Tuple[str, int, bool], List[np.ndarray]] = {}

    def take(self, operation: Operation) -> np.ndarray:
        free = self._free.setdefault((operation.dtype, operation.count, operation.shared), [])
        if free:
            return free.pop()
        make = ddl.empty if operation.shared else np.empty
        return make(operation.count, operation.dtype)

    def give_back(self, operation: Operation, buffers: Tuple[np.ndarray, ...]) -> None:
        self._free[operation.dtype, operation.count, operation.shared] += buffers


class Stress:
    """The state of one rank."""

    def __init__(self, seed: int) -> None:
        self.comm = ddl.world()
        self.seed = seed
        self.values = Values(self.comm.size)
        self.pool = Pool()
        self.under_way: List[UnderWay] = []
        self.random = random.Random(f"{seed} of rank {self.comm.rank}")
        self.waiter = ThreadPoolExecutor(1)  # a second thread that waits
        self.prepared: Dict[Tuple[str, int, bool, int], Tuple[np.ndarray, Callable[[], Any]]] = {}

    # --- one operation ---

    def delay(self) -> None:
        """Mostly nothing; sometimes busy for a moment, sometimes asleep, seldom so long that the others sleep too."""
        chance = self.random.random()
        if chance < 0.05:
            until = time.perf_counter() + self.random.random() * 50e-6
            while time.perf_counter() < until:
                pass
        elif chance < 0.06:
            time.sleep(self.random.random() * 300e-6)
        elif chance < 0.062:
            time.sleep(self.random.random() * 3e-3)

    def arguments(self, operation: Operation, x: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
        keywords: Dict[str, Any] = {}
        if operation.verb in ("allreduce", "allreduce_", "reduce", "reducescatter"):
            keywords["op"] = operation.op
        if operation.verb in ("broadcast_", "reduce", "gather", "scatter"):
            keywords["root"] = operation.root
        if operation.verb == "scatter" and self.comm.rank != operation.root:
            x = None
        return ((), keywords) if operation.verb == "barrier" else ((x,), keywords)

    def run(self, operation: Operation) -> None:
        if operation.verb == "prepared":
            self.run_prepared(operation)
            return
        x = self.pool.take(operation)
        self.values.fill(x, operation, self.comm.rank)
        if operation.verb == "exchange":
            self.exchange(operation, x)
            return
        arguments, keywords = self.arguments(operation, x)
        if operation.background:
            verb = operation.verb
            name = verb + "async_" if verb.endswith("_") else verb + "_async"
            work = getattr(self.comm, name)(*arguments, **keywords)
            self.under_way.append(UnderWay(operation, (x,), self.waiting(work)))
        else:
            self.check(operation, getattr(self.comm, operation.verb)(*arguments, **keywords))
            self.pool.give_back(operation, (x,))

    def run_prepared(self, operation: Operation) -> None:
        """The same buffer again and again, prepared once per kind and size; in place where there is no such call."""
        short = replace(operation, count=min(operation.count, 512))
        key = (short.dtype, short.count, short.shared, int(short.op))
        if key not in self.prepared:
            x = (ddl.empty if short.shared else np.empty)(short.count, short.dtype)
            prepare = getattr(self.comm, "prepare_allreduce", None)
            call = prepare(x, op=operation.op) if prepare else lambda: self.comm.allreduce_(x, op=operation.op)
            self.prepared[key] = x, call
        x, call = self.prepared[key]
        self.values.fill(x, short, self.comm.rank)
        call()
        self.check(short, x)

    def exchange(self, operation: Operation, x: np.ndarray) -> None:
        rank, size = self.comm.rank, self.comm.size
        y = self.pool.take(operation)
        receiving = self.comm.recv_async(y, (rank - 1) % size)
        sending = self.comm.send_async(x, (rank + 1) % size)
        waits = self.waiting(sending), self.waiting(receiving)
        self.under_way.append(UnderWay(operation, (x, y), lambda: [wait() for wait in waits][1]))

    # --- waiting and checking ---

    def waiting(self, work: ddl.Work) -> Callable[[], Any]:
        """Return one of the ways to wait for ``work``."""
        chance = self.random.random()
        if chance < 0.7:
            return work.wait
        if chance < 0.8:
            future: Future[Any] = self.waiter.submit(work.wait)
            return future.result

        def poll() -> Any:
            while not work.done():
                try:
                    work.wait(timeout=_POLL_S)
                except ddl.WaitTimeout:
                    continue
            return work.wait()

        return poll

    def finish_one(self) -> None:
        done = self.under_way.pop(self.random.randrange(len(self.under_way)))
        try:
            self.check(done.operation, done.wait())
        except ddl.Error as error:
            raise AssertionError(self.told(done.operation, f"waiting failed: {error}")) from error
        self.pool.give_back(done.operation, done.buffers)

    def told(self, operation: Operation, what: str) -> str:
        return (
            f"seed {self.seed}, rank {self.comm.rank} of {self.comm.size}, operation {operation.number}: {what}\n"
            f"({operation}; {len(self.under_way)} others under way; repeat with STRESS_SEED={self.seed})"
        )

    def check(self, operation: Operation, got: Any) -> None:
        """Raise an AssertionError that says all that is needed to repeat it, unless ``got`` is exactly right."""
        want = self.values.expected(operation, self.comm.rank)
        if want.size == 0 and got is None:
            return
        if isinstance(got, np.ndarray) and got.shape == want.shape and np.array_equal(got, want):
            return
        if not isinstance(got, np.ndarray) or got.shape != want.shape:
            raise AssertionError(self.told(operation, f"got {got!r} instead of {want.size} elements"))
        wrong = np.flatnonzero(got != want)
        first = wrong[:5]
        text = f"{wrong.size} of {want.size} elements ({want.nbytes} bytes) are wrong, the first at {first.tolist()}: "
        text += f"{got[first].tolist()} instead of {want[first].tolist()}"
        raise AssertionError(self.told(operation, text))


def run_operations(seed: int, operations: int) -> Tuple[int, float]:
    """Run them all on this rank; return how many results were checked, and the seconds that it took."""
    stress = Stress(seed)
    started = time.monotonic()
    checked = 0
    for operation in sequence(seed, operations, stress.comm.size):
        stress.delay()
        while stress.under_way and (len(stress.under_way) >= UNDER_WAY or stress.random.random() < 0.3):
            stress.finish_one()
        try:
            stress.run(operation)
        except ddl.Error as error:
            raise AssertionError(stress.told(operation, f"the call failed: {error}")) from error
        checked += 1
    while stress.under_way:
        stress.finish_one()
    stress.waiter.shutdown()
    stress.comm.barrier()
    return checked, time.monotonic() - started
