"""The fake driver runs work in the order of its streams, events, words and host functions, and knows captures.

No test here is about DDL: they prove the tool with which others prove DDL's order.
"""

from __future__ import annotations

import ctypes
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Tuple

import pytest
from device.fake_checks import MODES, SEEDS, fails, flags
from device.fake_cuda import Fake
from device.fake_cuda.scenes import in_thread, load_word, store

pytestmark = pytest.mark.fake_driver("it is what is tested here")

# --- order ---


def test_work_happens_when_it_is_run(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    source, stream = fake.host(4), fake.stream()
    device = fake.alloc(4)
    fake.copy_up(device, source.address, 4, stream)
    source.array[:] = 7
    assert not fake.stream_done(stream) and fake.pending() == 1
    assert fake.step(5) == 1
    assert fake.stream_done(stream)
    assert fake.peek(device, 4) == b"\7\7\7\7"


def test_a_device_does_one_copy_in_each_direction_at_a_time(new: Callable[..., Fake]) -> None:
    """Copies on streams of their own follow one another: all together take as long as their bytes."""
    fake = new()
    bytes, count = 1 << 20, 4
    fake.option("down_bytes_per_s", 20 << 20)
    streams = [fake.stream() for _ in range(count)]
    device, target = fake.alloc(bytes), fake.host(count * bytes)
    fake.copy_up(device, fake.host(bytes).address, bytes, streams[0])
    fake.until(lambda: fake.pending() == 0)
    begin = time.monotonic()
    for number, stream in enumerate(streams):
        fake.order(streams[0], stream)
        fake.copy_down(target.address + number * bytes, device, bytes, stream)
    fake.until(lambda: fake.pending() == 0)
    assert time.monotonic() - begin >= count / 20
    assert fake.violations == []


def test_a_device_runs_nothing_while_others_have_their_turn(new: Callable[..., Fake]) -> None:
    fake = new()
    stream, (address, words) = fake.stream(), flags(fake, 1)
    now = int(time.monotonic() * 1e6)
    fake.option("slice_us", now - 1000)  # the second turn since the machine was started: for as long as it has run
    fake.write_value(stream, address, 1)
    time.sleep(0.02)
    assert words() == [0] and fake.pending() == 1
    fake.option("slice_us", 1 << 60)  # the first turn
    fake.until(lambda: words() == [1])
    assert fake.violations == []


def orders(fake: Fake, streams: List[int], each: int) -> List[int]:
    """Let each stream write its flags 1, 2, …; return the streams in the order in which they did."""
    address, words = flags(fake, len(streams))
    for value in range(1, each + 1):
        for i, stream in enumerate(streams):
            fake.write_value(stream, address + 4 * i, value)
    seen = []
    before = words()
    while fake.step() == 1:
        now = words()
        changed = [i for i in range(len(streams)) if now[i] != before[i]]
        assert len(changed) == 1 and now[changed[0]] == before[changed[0]] + 1  # in the stream's order
        seen += changed
        before = now
    return seen


def test_a_seed_replays_exactly(new: Callable[..., Fake]) -> None:
    def run(seed: int, queues: int = 8) -> List[int]:
        fake = new(mode="steps", seed=seed, queues=queues)
        return orders(fake, [fake.stream() for _ in range(3)], 4)

    assert all(run(seed) == run(seed) for seed in SEEDS)
    assert len({tuple(run(seed)) for seed in range(20)}) > 15
    assert run(1, queues=1) == [0, 1, 2] * 4  # as they were queued


@pytest.mark.parametrize("queues", [0, 1, 2, 8])
def test_a_blocked_head_blocks_its_queue(new: Callable[..., Fake], queues: int) -> None:
    fake = new(mode="steps", queues=queues)
    first, second, third = fake.stream(), fake.stream(), fake.stream()
    address, words = flags(fake, 3)
    fake.wait_value(first, address, 1)
    fake.write_value(second, address + 4, 1)
    fake.write_value(third, address + 8, 1)
    fake.run()
    assert words() == {0: [0, 1, 1], 1: [0, 0, 0], 2: [0, 1, 0], 8: [0, 1, 1]}[queues]
    store(address, 1)
    fake.run()
    assert words() == [1, 1, 1] and fake.pending() == 0


def test_events(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    stream, other, event = fake.stream(), fake.stream(), fake.event()
    address, words = flags(fake, 2)
    assert fake.event_done(event)  # never recorded
    fake.wait_value(stream, address, 1)
    fake.record(event, stream)
    assert fake.code("cuEventQuery", event) == 600 and fake.code("cuStreamQuery", stream) == 600
    fake.wait(other, event)
    fake.record(event, fake.stream())  # which replaces the record, but not for a wait that has been called
    fake.write_value(other, address + 4, 1)
    fake.run()
    assert fake.event_done(event) and words()[1] == 0
    fake.record(event, stream)
    fake.check("cuEventDestroy_v2", event)  # pending
    assert fake.live("events") == 0
    store(address, 1)
    fake.run()
    assert words()[1] == 1 and fake.stream_done(stream)
    assert not fake.violations
    fails(400, fake.event_done, event)
    fake.check("cuStreamDestroy_v2", stream)
    fails(400, fake.stream_done, stream)
    assert len(fake.violations) == 2


def test_an_event_and_its_stream_are_of_one_context(new: Callable[..., Fake]) -> None:
    fake = new(devices=2)
    stream = fake.stream()
    with fake.pushed(fake.retain(1)):
        event = fake.event()
        fails(400, fake.record, event, stream)
        fake.record(event, fake.stream())
    fake.wait(stream, event)  # of another context: allowed
    fake.finish(stream)


@pytest.mark.parametrize("blocking", [True, False])
def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it(new: Callable[..., Fake], blocking: bool) -> None:
    for handle in (0, 1):
        fake = new(mode="steps", queues=0)
        stream, other = fake.stream(blocking=blocking), fake.stream(blocking=blocking)
        address, words = flags(fake, 3)
        fake.wait_value(stream, address, 1)
        fake.write_value(handle, address + 4, 1)
        fake.write_value(other, address + 8, 1)
        fake.run()
        assert words() == ([0, 0, 0] if blocking else [0, 1, 1])
        assert fake.stream_done(0) != blocking
        store(address, 1)
        fake.run()
        assert words() == [1, 1, 1]
        assert fake.stream_done(handle)


def test_words(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    stream, address = fake.stream(), fake.host(8).address
    for value, condition, stored, passes in (
        (5, 0, 4, False), (5, 0, 5, True), (5, 0, 6, True),
        (0xFFFFFFFF, 0, 0xFFFFFFFE, False), (0xFFFFFFFF, 0, 3, True), (1, 0, 0x80000002, False),
        (5, 1, 6, False), (5, 1, 5, True),
    ):  # fmt: skip
        store(address, stored)
        fake.wait_value(stream, address, value, condition=condition)
        assert fake.run() == int(passes)
        store(address, value)
        assert fake.run() == int(not passes)
    fake.write_value(stream, address + 4, 9)
    assert load_word(address + 4) == 0
    fake.run()
    assert load_word(address + 4) == 9
    device = fake.alloc(4)
    fake.write_value(stream, device, 258)
    fake.finish(stream)
    assert fake.peek(device, 4) == b"\2\1\0\0"
    fails(1, fake.write_value, stream, address + 2, 1)
    fails(1, fake.wait_value, stream, fake.host(4, register=False).address, 1)
    assert not fake.violations


@pytest.mark.parametrize("mode", MODES)
def test_host_functions_run_on_a_thread_of_the_driver(new: Callable[..., Fake], mode: str) -> None:
    fake = new(mode=mode)
    streams = [fake.stream(), fake.stream()]
    calls: List[Tuple[int, int, int]] = []

    def called(stream: int, number: int) -> None:
        calls.append((stream, number, threading.get_ident()))

    for number in range(3):
        for stream in streams:
            fake.call_on_host(stream, partial(called, stream, number))
    codes: List[int] = []
    fake.call_on_host(streams[0], lambda: codes.append(fake.code("cuEventQuery", 1)))
    for stream in streams:
        fake.finish(stream)
        assert [number for where, number, _ in calls if where == stream] == [0, 1, 2]
    assert len({thread for *_, thread in calls} - {threading.get_ident()}) == 1
    assert codes == [800]
    assert fake.violations == ["cuEventQuery was called by a host function"]


def test_a_test_may_block_while_commands_are_run(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    stream, event, called = fake.stream(), fake.event(), threading.Event()
    fake.call_on_host(stream, called.set)
    fake.record(event, stream)
    with fake.driven():
        assert called.wait(100)
        while not fake.event_done(event):
            pass
    fake.record(event, stream)
    time.sleep(0.002)
    assert not fake.event_done(event)


def test_threads_stop_while_paused(new: Callable[..., Fake]) -> None:
    fake = new()
    streams = [fake.stream() for _ in range(4)]
    address, words = flags(fake, 5)
    for value in range(1, 51):
        for i, stream in enumerate(streams):
            fake.write_value(stream, address + 4 * i, value)
            if value == 40:
                fake.wait_value(stream, address + 16, 1)
    fake.pause()
    before = words()
    store(address + 16, 1)
    time.sleep(0.005)
    assert words() == [*before[:4], 1] and 40 <= fake.pending() <= 204 - sum(before)
    fake.pause(False)
    for stream in streams:
        fake.finish(stream)
    assert words() == [50, 50, 50, 50, 1]
    assert not fake.violations


# --- captures ---


@pytest.mark.parametrize("entry", ["cuEventQuery", "cuMemHostRegister_v2", "cuMemAlloc_v2"])
@pytest.mark.parametrize(("capture", "other", "own"), [
    (0, 0, False), (0, 1, False), (0, 2, False), (1, 0, False), (2, 0, False),
    (0, 0, True), (0, 1, True), (0, 2, True), (1, 0, True), (1, 1, True), (2, 0, True),
])  # fmt: skip
def test_capture(new: Callable[..., Fake], entry: str, capture: int, other: int, own: bool) -> None:
    """A capture in a mode, and a call by a thread in a mode: another thread, or the one that captures."""
    fake = new(mode="steps")
    stream, event, context = fake.stream(), fake.event(), fake.context()
    memory, word = fake.host(8, register=False).address, fake.host(4).address
    pointer = ctypes.byref(ctypes.c_uint64())
    calls: Dict[str, List[Any]] = {
        "cuEventQuery": [event],
        "cuMemHostRegister_v2": [memory, 8, 0],
        "cuMemAlloc_v2": [pointer, 8],
    }
    arguments = calls[entry]
    codes: List[int] = []

    def call() -> None:
        with fake.pushed(context):
            former = fake.exchange_capture_mode(other)
            codes.append(fake.code(entry, *arguments))
            assert fake.exchange_capture_mode(former) == other

    fake.capture_begin(stream, capture)
    assert fake.capturing(stream) == 1
    fake.write_value(stream, word, 1)
    call() if own else in_thread(call)
    spoilt = (capture != 2 and other != 2) if own else (capture == 0 and other == 0)
    assert codes == [900 if spoilt else 0]
    assert fake.capturing(stream) == (2 if spoilt else 1)
    assert fake.code("cuEventRecord", event, stream) == (901 if spoilt else 0)
    assert fake.capture_end(stream) == (901 if spoilt else 0)
    assert fake.capturing(stream) == 0 and fake.pending() == 0 and load_word(word) == 0
    assert fake.code("cuEventQuery", event) == (0 if spoilt else 907)  # its record is a part of the graph


def test_a_capture_waits_for_each_stream_that_has_joined_it(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    stream, other = fake.stream(), fake.stream()
    word = fake.host(4).address
    for back, then, code in ((False, False, 904), (True, False, 0), (True, True, 904)):
        fake.capture_begin(stream, 2)
        fake.order(stream, other)
        if back:
            fake.order(other, stream)
        if then:
            fake.write_value(other, word, 1)
        assert fake.capture_end(stream) == code and fake.capturing(other) == 0
    assert not fake.violations


def test_a_capture_spreads_and_keeps_out_of_the_legacy_stream(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    stream, other, outside, event = fake.stream(blocking=True), fake.stream(), fake.stream(), fake.event()
    fake.capture_begin(stream, 1)
    fake.order(stream, other)
    assert fake.capturing(other) == 1  # it waits for a stream that is captured
    assert fake.code("cuStreamIsCapturing", 0, ctypes.byref(ctypes.c_int())) == 906
    assert fake.capturing(stream) == 1  # a question spoils nothing
    fails(906, fake.record, event, 0)
    assert fake.capture_end(stream) == 901 and fake.capturing(other) == 0
    fake.record(event, outside)
    fake.capture_begin(stream, 1)
    fails(905, fake.wait, stream, event)  # for what is no part of the graph
    assert fake.capture_end(stream) == 901
    fake.capture_begin(stream, 2)
    fails(900, fake.stream_done, stream)
    assert fake.capture_end(stream) == 901
    assert not fake.violations
