"""Small programs for the ledger, each with one edge that orders two accesses, and without it.

A scene gets the fake, whether to make the edge, and ``pace``, which it calls after everything that it queues: the test
runs all of it at once there (lucky timing), or nothing (then commands run at the end, in an order that the seed
chooses).
"""

from __future__ import annotations

import ctypes
import threading
from typing import Callable, Dict, List

from device.fake_cuda.fake import Fake

Pace = Callable[[], object]
Scene = Callable[[Fake, bool, Pace], None]
SCENES: Dict[str, Scene] = {}
BYTES = 64


def scene(function: Scene) -> Scene:
    """Add the program to ``SCENES``, under its name."""
    SCENES[function.__name__] = function
    return function


def in_thread(function: Callable[[], object]) -> None:
    """Call it in a thread of its own, to its end. The ledger sees no order in that."""
    errors: List[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def store(address: int, value: int) -> None:
    """Store a word, as a lane does: no call of the driver."""
    ctypes.c_uint32.from_address(address).value = value


def load_word(address: int) -> int:
    """Return the word that is there now."""
    return ctypes.c_uint32.from_address(address).value


@scene
def stream_order(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, first = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_up(device, host, BYTES, first)
    pace()
    fake.copy_down(host, device, BYTES, first if ordered else fake.stream())
    pace()


@scene
def event_wait(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    first, second = fake.stream(), fake.stream()
    fake.copy_up(device, source, BYTES, first)
    pace()
    if ordered:
        fake.order(first, second)
        pace()
    fake.copy_down(target, device, BYTES, second)
    pace()


@scene
def record_takes_what_is_there(fake: Fake, ordered: bool, pace: Pace) -> None:
    """The event is recorded behind the copy, or before it."""
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    first, second, event = fake.stream(), fake.stream(), fake.event()
    if not ordered:
        fake.record(event, first)
    fake.copy_up(device, source, BYTES, first)
    pace()
    if ordered:
        fake.record(event, first)
    fake.wait(second, event)
    pace()
    fake.copy_down(target, device, BYTES, second)
    pace()


@scene
def wait_uses_the_latest_record(fake: Fake, ordered: bool, pace: Pace) -> None:
    """The stream waits behind the second record, or before it."""
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    first, second, event = fake.stream(), fake.stream(), fake.event()
    fake.record(event, first)
    pace()
    if not ordered:
        fake.wait(second, event)
    fake.copy_up(device, source, BYTES, first)
    fake.record(event, first)
    pace()
    if ordered:
        fake.wait(second, event)
    fake.copy_down(target, device, BYTES, second)
    pace()


@scene
def event_query(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream, event = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream(), fake.event()
    fake.copy_down(host, device, BYTES, stream)
    fake.record(event, stream)
    pace()
    if ordered:
        fake.until(lambda: fake.event_done(event))
    fake.access(host, BYTES, writes=False)


@scene
def stream_query(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_up(device, host, BYTES, stream)
    pace()
    if ordered:
        fake.finish(stream)
    fake.access(host, BYTES, writes=True)


@scene
def query_of_the_wrong_stream(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, host, stream, other = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream(), fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    pace()
    fake.finish(stream if ordered else other)
    fake.access(host, BYTES, writes=False)


@scene
def queueing(fake: Fake, ordered: bool, pace: Pace) -> None:
    """The host writes before it queues the copy, or behind that."""
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    if ordered:
        fake.access(host, BYTES, writes=True)
    fake.copy_up(device, host, BYTES, stream)
    pace()
    if not ordered:
        fake.access(host, BYTES, writes=True)


@scene
def written_flag(fake: Fake, ordered: bool, pace: Pace) -> None:
    """A lane sees the flag that the stream writes behind a copy; without the edge it has not looked."""
    device, host, flag, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(4).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    fake.write_value(stream, flag, 1)
    pace()

    def lane() -> None:
        if ordered:
            fake.until(lambda: load_word(flag) == 1)
            fake.acquire(flag)
        fake.access(host, BYTES, writes=False)

    in_thread(lane)


@scene
def flag_at_least(fake: Fake, ordered: bool, pace: Pace) -> None:
    """A lane that needs the second piece asks for the flag to be 2, or is content with 1."""
    device, host, flag, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(4).address, fake.stream()
    for piece in (0, 1):
        fake.copy_down(host + 32 * piece, device + 32 * piece, 32, stream)
        fake.write_value(stream, flag, piece + 1)
    pace()
    fake.until(lambda: load_word(flag) >= 1)
    fake.acquire(flag, at_least=1)
    fake.access(host, 32, writes=False)
    value = 2 if ordered else 1
    fake.until(lambda: load_word(flag) >= value)
    fake.acquire(flag, at_least=value)
    fake.access(host + 32, 32, writes=False)


@scene
def awaited_flag(fake: Fake, ordered: bool, pace: Pace) -> None:
    """A stream copies what a lane has written and told of by a flag, or copies it without looking."""
    device, host, flag, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(4).address, fake.stream()
    if ordered:
        fake.wait_value(stream, flag, 1)
    fake.copy_up(device, host, BYTES, stream)
    if not ordered:
        pace()

    def lane() -> None:
        fake.access(host, BYTES, writes=True)
        fake.release(flag)
        store(flag, 1)

    in_thread(lane)
    pace()


@scene
def awaited_value(fake: Fake, ordered: bool, pace: Pace) -> None:
    """A stream that needs the second piece waits for 2, or is content with 1; the lane is early in both cases."""
    device, host, flag, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(4).address, fake.stream()

    def lane() -> None:
        for piece in (0, 1):
            fake.access(host + 32 * piece, 32, writes=True)
            fake.release(flag)
            store(flag, piece + 1)

    in_thread(lane)
    fake.wait_value(stream, flag, 2 if ordered else 1)
    fake.copy_up(device + 32, host + 32, 32, stream)
    pace()


@scene
def token(fake: Fake, ordered: bool, pace: Pace) -> None:
    """What one thread has queried, another one uses."""
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    pace()
    fake.finish(stream)
    fake.release(12345)

    def lane() -> None:
        if ordered:
            fake.acquire(12345)
        fake.access(host, BYTES, writes=True)

    in_thread(lane)


@scene
def token_of_two_threads(fake: Fake, ordered: bool, pace: Pace) -> None:
    """Who acquires a token knows of all who have released it, also where the token lies in registered memory."""
    host, token = fake.host(BYTES).address, fake.host(4).address

    def lane(begin: int) -> None:
        fake.access(host + begin, 32, writes=True)
        if ordered or begin == 32:
            fake.release(token)

    in_thread(lambda: lane(0))
    in_thread(lambda: lane(32))
    fake.acquire(token)
    fake.access(host, BYTES, writes=False)


@scene
def legacy_waits(fake: Fake, ordered: bool, pace: Pace) -> None:
    """The legacy stream waits for a blocking stream, and for no other."""
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    fake.copy_up(device, source, BYTES, fake.stream(blocking=ordered))
    pace()
    fake.copy_down(target, device, BYTES, 0)
    pace()


@scene
def legacy_is_waited_for(fake: Fake, ordered: bool, pace: Pace) -> None:
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    stream = fake.stream(blocking=ordered)
    fake.copy_up(device, source, BYTES, 1)
    pace()
    fake.copy_down(target, device, BYTES, stream)
    pace()


@scene
def destroyed_stream(fake: Fake, ordered: bool, pace: Pace) -> None:
    """What a stream did before it was destroyed stays as ordered as it was."""
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    stream = fake.stream(blocking=ordered)
    fake.copy_up(device, source, BYTES, stream)
    pace()
    fake.check("cuStreamDestroy_v2", stream)
    fake.copy_down(target, device, BYTES, 0)
    pace()


@scene
def query_of_the_legacy_stream(fake: Fake, ordered: bool, pace: Pace) -> None:
    """It is done when all blocking streams are, and tells of them."""
    device, host = fake.alloc(BYTES), fake.host(BYTES).address
    fake.copy_down(host, device, BYTES, fake.stream(blocking=ordered))
    pace()
    fake.finish(0)
    fake.access(host, BYTES, writes=True)


@scene
def per_thread_stream(fake: Fake, ordered: bool, pace: Pace) -> None:
    """Two threads' streams 2 are two streams, and the legacy stream waits for each."""
    device, source, target = fake.alloc(BYTES), fake.host(BYTES).address, fake.host(BYTES).address
    context = fake.context()

    def other() -> None:
        with fake.pushed(context):
            fake.copy_up(device, source, BYTES, 2)

    in_thread(other)
    pace()
    fake.copy_down(target, device, BYTES, 0 if ordered else 2)
    pace()


@scene
def host_function(fake: Fake, ordered: bool, pace: Pace) -> None:
    """A host function is a part of its stream."""
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    other = stream if ordered else fake.stream()
    fake.call_on_host(other, lambda: fake.access(host, BYTES, writes=True, who="function"))
    pace()
    fake.copy_up(device, host, BYTES, stream)
    pace()
