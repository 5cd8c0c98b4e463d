"""Questions of the probe about streams that wait for a word that the host stores: what they hold up meanwhile.

The driver knows nothing of such a wait. It may keep work of other streams behind it, where streams share a queue of the
hardware (CUDA_DEVICE_MAX_CONNECTIONS says how many there are), or hold a lock while it waits for the device.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np

from benchmarks.gpu.driver import CudaDriver, HostBlock
from benchmarks.gpu.probe_memory import MIB, computing

__all__ = ["depth", "free", "wait"]

PIECES, STREAMS = 8, 12
MOST_QUEUED = 4096  # commands
BLOCKED = 0.3  # seconds that a call takes at least if the queue is full


def _wait_for(driver: CudaDriver, stream: int, address: int, value: int) -> None:
    driver.call("cuStreamWaitValue32_v2", stream, address, value, 0)


def _order(driver: CudaDriver, before: int, after: int) -> None:
    event = driver.event()
    driver.call("cuEventRecord", event, before)
    driver.call("cuStreamWaitEvent", after, event, 0)


def _ends(driver: CudaDriver, stream: int, seconds: float) -> float:
    """Return after how many seconds the stream has ended; -1: it has not, within so many."""
    begin = time.monotonic()
    while not driver.ended(stream):
        if time.monotonic() - begin > seconds:
            return -1.0
        time.sleep(0.0005)
    return time.monotonic() - begin


class _StagedOperation:
    """The copies of one operation, all queued at once: down, then up, each piece when the host says so by a word.

    The producer's stream waits for the end, as a caller's would. ``first``: the word of the host for this operation.
    """

    def __init__(self, driver: CudaDriver, words: HostBlock, first: int, streams: Tuple[int, int, int]) -> None:
        self.driver, self.words, self.first = driver, words, first
        producer, down, up = streams
        self.producer, self.host = producer, HostBlock(driver, PIECES * MIB)
        self.device = driver.allocate(PIECES * MIB)
        self.down, self.up = down, up
        np.frombuffer(self.host.pages, np.uint8)[:] = 1

    def queue(self) -> None:
        """Queue all of it; from here on nothing is allocated or registered, as that might wait for the device."""
        driver, producer, down, up = self.driver, self.producer, self.down, self.up
        address = self.words.device_address() + 4 * self.first
        driver.up(self.device, self.host.address, PIECES * MIB, producer)
        _order(driver, producer, down)
        _order(driver, producer, up)
        for piece in range(PIECES):
            at = piece * MIB
            driver.down(self.host.address + at, self.device + at, MIB, down)
            driver.call("cuStreamWriteValue32_v2", down, address, piece + 1, 0)
        for piece in range(PIECES):
            at = piece * MIB
            _wait_for(driver, up, address + 4, piece + 1)
            driver.up(self.device + at, self.host.address + at, MIB, up)
        _order(driver, up, producer)

    def reduce(self, seconds: float) -> bool:
        """Change each piece when it is down, and say so, as a lane would; return whether all came down."""
        deadline = time.monotonic() + seconds
        view = np.frombuffer(self.host.pages, np.uint8)
        for piece in range(PIECES):
            while self.words.word(self.first).value <= piece:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0)
            view[piece * MIB : (piece + 1) * MIB] += 1
            self.words.word(self.first + 1).value = piece + 1
        return True

    def give_up(self) -> None:
        """Let no stream wait any more."""
        self.words.word(self.first + 1).value = PIECES

    def right(self) -> bool:
        """Return whether the result is on the device."""
        target = HostBlock(self.driver, PIECES * MIB)
        self.driver.down(target.address, self.device, PIECES * MIB, self.producer)
        self.driver.finish(self.producer)
        return bool((np.frombuffer(target.pages, np.uint8) == 2).all())


def wait(driver: CudaDriver) -> Dict[str, Any]:
    """Two operations are queued in full, and the host serves them in their order; what happens on other streams?"""
    words = HostBlock(driver, 4096)
    streams = [driver.stream() for _ in range(STREAMS)]
    producers, (down, up), others = streams[:2], streams[2:4], streams[4:]
    with computing() as busy:
        operations = [
            _StagedOperation(driver, words, 4 * number, (producer, down, up))
            for number, producer in enumerate(producers)
        ]
        block, device = HostBlock(driver, MIB), driver.allocate(MIB)
        for operation in operations:
            operation.queue()
        # Work that is queued later, on streams that wait for nothing: how many of them go on before the host stores?
        for stream in others:
            driver.up(device, block.address, 4096, stream)
        held_up = sum(_ends(driver, stream, 0.2) < 0 for stream in others)
        begin = time.monotonic()
        came = [operation.reduce(10.0) for operation in operations]
        for operation in operations:
            operation.give_up()
        ended = [_ends(driver, operation.producer, 10.0) for operation in operations]
        answer: Dict[str, Any] = {
            "a stream computes meanwhile": busy,
            "all pieces came down": all(came),
            "ended": all(seconds >= 0 for seconds in ended),
            "later streams that were held up": f"{held_up} of {len(others)}",
            "ms": 1e3 * (time.monotonic() - begin),
        }
        if answer["ended"]:
            answer["results are right"] = all(operation.right() for operation in operations)
    return answer


@contextlib.contextmanager
def _thread(driver: CudaDriver, function: Callable[[], None]) -> Iterator[threading.Thread]:
    def main() -> None:
        driver.enter()
        function()

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    yield thread
    thread.join(5)


def free(driver: CudaDriver) -> Dict[str, Any]:
    """A thread frees memory while a stream waits for a word: does that wait, and which calls wait behind it?"""
    words, block = HostBlock(driver, 4096), HostBlock(driver, MIB)
    waiting, other, event = driver.stream(), driver.stream(), driver.event()
    memory, device = driver.allocate(MIB), driver.allocate(MIB)
    driver.call("cuEventRecord", event, other)
    driver.finish(other)
    _wait_for(driver, waiting, words.device_address(), 1)
    freed: List[float] = []
    begin = time.monotonic()

    def release() -> None:
        driver.call("cuMemFree_v2", memory)
        freed.append(time.monotonic() - begin)

    calls: Dict[str, Callable[[], object]] = {
        "query an event": lambda: driver.library.cuEventQuery(event),
        "record an event": lambda: driver.call("cuEventRecord", driver.event(), other),
        "queue a copy": lambda: driver.up(device, block.address, 4096, other),
        "write a word": lambda: driver.call("cuStreamWriteValue32_v2", other, words.device_address() + 64, 1, 0),
    }
    blocked: Dict[str, bool] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_thread(driver, release))
        time.sleep(0.2)
        waits = not freed
        for name, call in calls.items():
            done = threading.Event()

            def attempt(call: Callable[[], object] = call, done: threading.Event = done) -> None:
                call()
                done.set()

            stack.enter_context(_thread(driver, attempt))
            blocked[f"{name}: waits, too"] = not done.wait(0.3)
        words.word().value = 1  # a store of the host, and no call of the driver
        stored = time.monotonic()
        ended = _ends(driver, waiting, 5.0)
    return {
        "to free memory waits for the word": waits,
        **blocked,
        "a store lets all go on": ended >= 0 and bool(freed),
        "ms after the store": 1e3 * (time.monotonic() - stored),
    }


def depth(driver: CudaDriver) -> Dict[str, Any]:
    """How many commands does a stream take behind one that waits for a word, before the call blocks?

    Copies alone, and pieces of a wait and a copy. Another thread queues, as it may block until the word is stored.
    """
    answer: Dict[str, Any] = {}
    for kind, waits in (("copies", False), ("pieces of a wait and a copy", True)):
        queued, ended = _queue_until_blocked(driver, waits)
        answer[f"{kind} until the call blocks"] = queued if queued < MOST_QUEUED else f"over {MOST_QUEUED}"
        answer[f"all ended after the store ({kind})"] = ended
    return answer


def _queue_until_blocked(driver: CudaDriver, waits: bool) -> Tuple[int, bool]:
    """Return how many copies were queued, each behind a wait or all behind one, and whether all end when let go."""
    words, block = HostBlock(driver, 4096), HostBlock(driver, 4096)
    stream, device, address = driver.stream(), driver.allocate(4096), words.device_address()
    if not waits:
        _wait_for(driver, stream, address, 1)
    queued: List[int] = []

    def queue_all() -> None:
        for number in range(MOST_QUEUED):
            if waits:
                _wait_for(driver, stream, address, 1)
            driver.up(device, block.address, 64, stream)
            queued.append(number)

    with _thread(driver, queue_all) as thread:
        before, since = -1, time.monotonic()
        while thread.is_alive() and time.monotonic() - since < BLOCKED:
            if len(queued) != before:
                before, since = len(queued), time.monotonic()
            time.sleep(0.001)
        count = len(queued)
        words.word().value = 1
    return count, not thread.is_alive() and _ends(driver, stream, 10.0) >= 0
