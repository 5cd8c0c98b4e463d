"""The fake driver keeps the rules of the real one, and its ledger objects to what nothing orders, however it was timed.

No test here is about DDL: they prove the tool with which others prove DDL's order.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest
from device.fake_cuda import ENTRIES, DeviceArray, DriverError, Fake, library
from device.fake_cuda.random_program import RandomProgram
from device.fake_cuda.scenes import BYTES, SCENES, in_thread, load_word, store

SEEDS = range(4)
MODES = ("steps", "threads")
OLDER = ("cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the libraries outside of the tests, which are to be quick."""
    library()
    library(*OLDER)


@pytest.fixture
def new() -> Iterator[Callable[..., Fake]]:
    """Return ``Fake``; nothing of it is left afterwards."""
    yield Fake
    Fake(start=False).reset()


def fails(code: int, call: Callable[..., object], *arguments: Any) -> None:
    with pytest.raises(DriverError) as raised:
        call(*arguments)
    assert raised.value.code == code


def flags(fake: Fake, count: int) -> Tuple[int, Callable[[], List[int]]]:
    """Return the address of ``count`` words, and a function that reads them."""
    memory = fake.host(4 * count)
    return memory.address, lambda: memory.view("uint32").tolist()


# --- start, contexts, devices ---


def test_exports_are_the_names_that_ddl_may_call() -> None:
    if (nm := shutil.which("nm")) is None:
        pytest.skip("needs nm")
    shown = subprocess.run([nm, "-D", "--defined-only", library()], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    assert {name for name in names if name.startswith("cu")} == set(ENTRIES)
    assert len(ENTRIES) == 40
    assert {"ddl_ledger_access", "ddl_ledger_release", "ddl_ledger_acquire"} < names


def test_start(new: Callable[..., Fake]) -> None:
    fake = new(start=False, devices=2)
    fails(3, fake.retain)
    fake.check("cuInit", 0)
    fails(201, fake.alloc, 8)
    count = ctypes.c_int()
    fake.check("cuDeviceGetCount", ctypes.byref(count))
    assert count.value == 2
    fails(101, fake.retain, 2)
    assert new(start=False, devices=0).code("cuInit", 0) == 100


def test_a_context_is_current_for_a_thread(new: Callable[..., Fake]) -> None:
    fake = new(devices=2)
    first, second = fake.context(), fake.retain(1)
    assert first != second and fake.retain(0) == first
    with fake.pushed(second):
        assert fake.context() == second
        assert fake.pointer_attributes(fake.alloc(8))["ordinal"] == 1
        in_thread(lambda: fails(201, fake.stream))
    assert fake.context() == first
    fake.set_context(0)
    assert fake.context() == 0
    fails(201, fake.check, "cuCtxPopCurrent_v2", None)


def test_a_primary_context_ends_with_its_last_owner(new: Callable[..., Fake]) -> None:
    fake = new()
    fake.retain()
    flags, active = ctypes.c_uint(), ctypes.c_int()
    for code in (0, 709):
        fake.check("cuDevicePrimaryCtxRelease_v2", 0)
        fake.check("cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
        assert active.value == (code == 0)
        assert fake.code("cuStreamQuery", 0) == (code or 0)
    assert fake.code("cuDevicePrimaryCtxRelease_v2", 0) == 201
    assert fake.live("contexts") == 0


def test_what_the_driver_tells(new: Callable[..., Fake]) -> None:
    fake = new()
    number, name, text = ctypes.c_int(), ctypes.c_char_p(), ctypes.create_string_buffer(32)
    fake.check("cuDriverGetVersion", ctypes.byref(number))
    assert number.value == 13000
    fake.check("cuDeviceGetAttribute", ctypes.byref(number), 91, 0)
    assert number.value == 1
    fake.option("attribute_91", 0)
    fake.check("cuDeviceGetAttribute", ctypes.byref(number), 91, 0)
    assert number.value == 0
    fake.check("cuGetErrorName", 719, ctypes.byref(name))
    assert name.value == b"CUDA_ERROR_LAUNCH_FAILED"
    fake.check("cuDeviceGetPCIBusId", text, 32, 0)
    assert text.value == b"0000:00:0d.0"
    fake.check("cuDeviceGetUuid_v2", text, 0)
    assert fake.code("cuIpcGetMemHandle", None, 0) == 801


# --- memory ---


def test_the_host_cannot_touch_device_memory(new: Callable[..., Fake]) -> None:
    fake = new()
    pointer = fake.alloc(100)
    read_end, write_end = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.write(write_end, ctypes.c_void_p(pointer), 1) == -1  # the kernel reads for us: an error, and no signal
    assert ctypes.get_errno() == 14
    os.close(read_end)
    os.close(write_end)
    fake.poke(pointer, b"abc")
    assert fake.peek(pointer + 1, 2) == b"bc"
    assert fake.name(pointer + 7) == f"device allocation {1} + 7 (of 100 bytes on device 0)"
    assert fake.name(pointer + 100) == "no device allocation"
    assert not fake.violations
    with pytest.raises(ValueError, match="cannot be read"):
        fake.peek(pointer, 101)
    assert len(fake.violations) == 1


@pytest.mark.parametrize("mode", MODES)
def test_freed_memory_is_poison(new: Callable[..., Fake], mode: str) -> None:
    fake = new(mode=mode)
    fake.pause()
    pointer, host, stream = fake.alloc(8), fake.host(8), fake.stream()
    fake.copy_down(host.address, pointer, 8, stream)
    fake.free(pointer)
    assert fake.alloc(8) != pointer
    assert fake.live("allocations") == 1
    fake.pause(False)
    fake.finish(stream)
    assert bytes(host.array) == b"\xdd" * 8
    assert any("which was freed" in violation for violation in fake.violations)
    fails(1, fake.free, pointer)
    fails(1, fake.copy_down, host.address, pointer, 8, stream)


def test_pointer_attributes(new: Callable[..., Fake]) -> None:
    fake = new()
    pointer, host = fake.alloc(100), fake.host(100)
    of_device = {"context": fake.context(), "memory_type": 2, "is_managed": 0, "ordinal": 0}
    assert fake.pointer_attributes(pointer + 99) == {**of_device, "range_start": pointer, "range_size": 100}
    assert fake.pointer_attributes(host.address + 1) == {
        **of_device, "memory_type": 1, "range_start": host.address, "range_size": 100
    }  # fmt: skip
    nothing = {"context": None, "memory_type": 0, "is_managed": 0, "ordinal": 0, "range_start": 0, "range_size": 0}
    assert fake.pointer_attributes(fake.host(8, register=False).address) == nothing
    fake.free(pointer)
    assert fake.pointer_attributes(pointer) == nothing
    fake.option("pooled")
    assert fake.pointer_attributes(fake.alloc(1))["context"] is None


def test_registration(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    page = 4096
    memory = fake.host(4 * page, register=False)
    fake.register(memory.address + page + 100, page - 200)  # the whole page
    for begin, size in ((page, 1), (0, page + 1), (2 * page - 1, 2), (0, 4 * page)):
        fails(712, fake.register, memory.address + begin, size)
    fails(713, fake.unregister, memory.address + page)  # not the address that was given
    fails(713, fake.unregister, memory.address)
    fails(1, fake.register, memory.address, 0)
    fails(1, fake.register, 4096, 10)  # nothing is mapped there
    fake.register(memory.address + 2 * page, page)
    pointer, stream = fake.alloc(4 * page), fake.stream()
    fails(1, fake.copy_up, pointer, memory.address + page, 2 * page, stream)  # two registrations
    fails(1, fake.copy_up, pointer, memory.address, 2 * page, stream)  # half of it is pageable
    fake.copy_up(pointer, memory.address + page, page, stream)
    device = ctypes.c_uint64()
    fake.check("cuMemHostGetDevicePointer_v2", ctypes.byref(device), memory.address + page, 0)
    assert device.value == memory.address + page
    assert fake.live("registrations") == 2 and not fake.violations
    fails(1, fake.copy_up, pointer, memory.address, page, stream)  # strict
    assert "the host memory is not registered" in fake.violations[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_of_pageable_memory_blocks(new: Callable[..., Fake], mode: str) -> None:
    fake = new(mode=mode, strict=False)
    host, stream = fake.host(8, register=False), fake.stream()
    array = DeviceArray(fake, 2, stream=stream).set([3, 4])
    fake.copy_down(host.address, array.pointer, 8, stream)
    assert host.view("float32").tolist() == [3, 4] and fake.pending() == 0
    assert not fake.violations
    fake.option("patience_ms", 20)
    fake.wait_value(stream, fake.host(4).address, 1)
    fails(999, fake.copy_down, host.address, array.pointer, 8, stream)
    assert "nothing lets go on" in fake.violations[-1]


def test_unregistered_memory_is_not_touched(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    host, stream = fake.host(8), fake.stream()
    array = DeviceArray(fake, 2, stream=stream).set([3, 4])
    fake.copy_down(host.address, array.pointer, 8, stream)
    fake.unregister(host.address)
    fake.run()
    assert host.view("float32").tolist() == [0, 0]
    assert any("which was unregistered" in violation for violation in fake.violations)


def test_unregistered_memory_is_the_callers_alone(new: Callable[..., Fake]) -> None:
    """A copy that is being run ends first: the caller may unmap the memory."""
    fake = new()
    size = 16 << 20
    device, host, stream = fake.alloc(size), fake.host(size), fake.stream()
    fake.poke(device, b"x" * size)
    fake.copy_down(host.address, device, size, stream)
    while host.array[0] == 0:
        pass
    fake.unregister(host.address)
    after = host.array.tobytes()
    fake.finish(stream)
    assert after == host.array.tobytes() == b"x" * size
    assert len(fake.violations) == 1  # nothing made the call wait but luck


def test_memory_that_is_registered_anew_has_no_past(new: Callable[..., Fake]) -> None:
    fake = new()
    host, context = fake.host(8), fake.context()

    def other() -> None:
        with fake.pushed(context):
            fake.register(host.address, 8)
            fake.access(host.address, 8, writes=True)

    fake.unregister(host.address)
    in_thread(other)
    assert not fake.violations


def test_free_can_wait_for_the_device(new: Callable[..., Fake]) -> None:
    """As the real one: under the driver's lock, so that no call of the driver may be needed to end the wait."""
    fake = new()
    fake.option("free_waits")
    device, host, flag, stream = fake.alloc(8), fake.host(8), fake.host(4).address, fake.stream()
    fake.wait_value(stream, flag, 1)
    fake.copy_down(host.address, device, 8, stream)
    context, freed, asked = fake.context(), threading.Event(), threading.Event()

    def free() -> None:
        with fake.pushed(context):
            fake.free(device)
            freed.set()

    def ask() -> None:
        fake.context()
        asked.set()

    threads = [threading.Thread(target=free), threading.Thread(target=ask)]
    threads[0].start()
    while fake.calls("cuMemFree_v2") == 0:
        pass
    threads[1].start()
    assert not asked.wait(0.02) and not freed.is_set()
    fake.release(flag)
    store(flag, 1)
    for thread in threads:
        thread.join(10)
    assert freed.is_set() and asked.is_set()
    assert not fake.violations


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
        assert called.wait(10)
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


# --- faults ---


@pytest.mark.parametrize("mode", MODES)
def test_a_device_that_fails_does_so_for_good(new: Callable[..., Fake], mode: str) -> None:
    fake = new(mode=mode, queues=1)
    fake.pause()
    address, words = flags(fake, 5)
    stream, event, context = fake.stream(), fake.event(), fake.context()
    for i in range(5):
        fake.write_value(stream, address + 4 * i, 1)
    fake.record(event, stream)
    fake.fail(719, 3)
    assert fake.code("cuEventQuery", event) == 600  # nothing has been executed yet
    fake.pause(False)
    fake.run()
    with pytest.raises(DriverError):
        fake.until(lambda: fake.event_done(event))
    assert words() == [1, 1, 1, 0, 0]
    for call in (fake.event, fake.context, lambda: fake.alloc(8), lambda: fake.finish(stream)):
        fails(719, call)
        in_thread(partial(fails, 719, call))
    assert fake.code("cuCtxPushCurrent_v2", context) == 719
    assert not fake.violations


def test_a_failure_ends_a_call_that_is_blocked(new: Callable[..., Fake]) -> None:
    fake = new(strict=False)
    stream, device, called = fake.stream(), fake.alloc(8), []
    fake.wait_value(stream, fake.host(4).address, 1)
    fake.call_on_host(stream, lambda: called.append(1))
    timer = threading.Timer(0.02, fake.fail, [700])
    timer.start()
    fails(700, fake.copy_up, device, fake.host(8, register=False).address, 8, stream)
    timer.join()
    assert not called


def test_refusals_and_counts(new: Callable[..., Fake]) -> None:
    fake = new()
    fake.refuse("cuMemAlloc_v2", 2, 2)
    fails(2, fake.alloc, 8)
    fails(2, fake.alloc, 8)
    assert fake.live("allocations") == 0
    fake.alloc(8)
    fake.refuse("cuStreamCreateWithPriority", 999)
    for _ in range(3):
        fails(999, fake.stream)
    fake.refuse("cuStreamCreateWithPriority", 0, 0)
    stream, event = fake.stream(), fake.event()
    fake.wait_value(stream, fake.host(4).address, 1)
    fake.record(event, stream)
    fake.refuse("cuEventQuery", 0, 1)
    fake.refuse("cuStreamWaitEvent", 0)
    assert fake.event_done(event)  # as if: it says so, and does nothing
    assert not fake.event_done(event)
    fake.wait(fake.stream(), event)
    assert fake.pending() == 2
    assert fake.calls("cuMemAlloc_v2") == 3 and fake.calls("cuMemFree_v2") == 0
    what = ("allocations", "streams", "events", "registrations", "contexts")
    assert [fake.live(kind) for kind in what] == [1, 2, 1, 1, 1]
    with pytest.raises(ValueError):
        fake.refuse("cuMemAlloc", 2)
    with pytest.raises(ValueError):
        fake.live("graphs")
    fake.option("keep_registrations")
    fake.reset()
    assert [fake.live(kind) for kind in what] == [0, 0, 0, 1, 0]
    assert fake.calls("cuMemAlloc_v2") == 0
    fake.option("keep_registrations", 0)
    fake.reset()
    assert fake.live("registrations") == 0


def in_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        right = False
        try:
            right = check()
        finally:
            os._exit(0 if right else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_a_forked_child_has_no_driver(new: Callable[..., Fake]) -> None:
    fake = new()
    event, stream = fake.event(), fake.stream()
    entries = [("cuInit", 0), ("cuEventQuery", event), ("cuStreamQuery", stream), ("cuCtxPopCurrent_v2", None)]
    assert in_child(lambda: [fake.code(*call) for call in entries] == [3, 3, 3, 3] and fake.violations == [])

    def of_its_own() -> bool:
        child = Fake(mode="steps")
        host, array = child.host(4), DeviceArray(child, 1).set(5)
        child.copy_down(host.address, array.pointer, 4, 0)
        return child.run() == 2 and host.view("float32")[0] == 5

    assert in_child(of_its_own)
    assert fake.event_done(event)
    fake.reset()
    assert in_child(lambda: fake.code("cuInit", 0) == 0)  # nobody had used it before the fork


def test_at_the_end_of_the_process_the_driver_goes_first(tmp_path: Path) -> None:
    """A plain program that knows no header: its exit handler is older than the library, and runs after it has gone."""
    source = tmp_path / "program.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "static int (*count)(int*);\n"
        "static void late(void) { int devices = 0; _exit(count(&devices)); }\n"
        "int main(int argc, char** argv) {\n"
        "  (void)argc; atexit(late);\n"
        "  void* driver = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);\n"
        '  int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");\n'
        '  count = (int (*)(int*))dlsym(driver, "cuDeviceGetCount");\n'
        "  int devices = 0;\n"
        '  printf("%d ", init(0));\n'
        '  printf("%d ", count(&devices));\n'
        '  printf("%d\\n", devices);\n'
        "  fflush(stdout); return 0;\n}\n"
    )
    program = tmp_path / "program"
    subprocess.run(["g++", "-x", "c++", source, "-o", program, "-ldl"], check=True)

    def run(**settings: Any) -> Tuple[int, str]:
        env = {**os.environ, **Fake.environment(**settings)}
        ended = subprocess.run([program, library()], env=env, timeout=30, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout.strip()

    assert run(devices=3) == (4, "0 0 3")
    assert run(refuse={"cuInit": 34})[1] == "34 3 0"


def test_another_process_reports_what_it_violated(tmp_path: Path) -> None:
    script = """
import sys
from device.fake_cuda import DeviceArray, Fake
fake = Fake(reset=False)
assert fake.steps
array = DeviceArray(fake, 4, stream=fake.stream()).set(1)
if sys.argv[1] == "finish":
    fake.finish(array.stream)
fake.run()
array.numpy()
"""
    report = tmp_path / "violations"
    tests = str(Path(__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": tests, **Fake.environment(report=report, mode="steps")}
    for manner, lines in (("finish", 0), ("lucky", 1)):
        subprocess.run([sys.executable, "-c", script, manner], env=env, check=True, timeout=60)
        assert len(report.read_text().splitlines() if report.exists() else []) == lines
    assert "nothing orders these: " in report.read_text()


def test_an_older_driver_lacks_names() -> None:
    older = ctypes.CDLL(str(library(*OLDER)))
    assert not any(hasattr(older, name) for name in OLDER)
    assert hasattr(older, "cuStreamWaitEvent") and hasattr(older, "ddl_ledger_access")


# --- arrays ---


class Capsule:
    """What a consumer sees of a DLPack capsule: it reads the tensor, and lets it go as it likes."""

    def __init__(self, capsule: object) -> None:
        self.python = api = ctypes.PyDLL(None)
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
        self.capsule, self.name = capsule, b"used_dltensor"
        self.address = api.PyCapsule_GetPointer(capsule, b"dltensor")

    def consume(self) -> None:
        self.python.PyCapsule_SetName(self.capsule, self.name)
        deleter = ctypes.c_void_p.from_address(self.address + 48 + 8).value  # behind the tensor and its manager
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter or 0)(self.address)


def test_dlpack(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    producer, consumer = fake.stream(), fake.stream()
    array = DeviceArray(fake, (2, 3), "int16", stream=producer).set(np.arange(6).reshape(2, 3))
    assert array.__dlpack_device__() == (2, 0)
    capsule = Capsule(array.__dlpack__(stream=consumer))
    data, device, index, ndim, code, bits, lanes = (
        kind.from_address(capsule.address + offset).value
        for kind, offset in (
            (ctypes.c_void_p, 0), (ctypes.c_int32, 8), (ctypes.c_int32, 12), (ctypes.c_int32, 16),
            (ctypes.c_uint8, 20), (ctypes.c_uint8, 21), (ctypes.c_uint16, 22),
        )
    )  # fmt: skip
    assert (data, device, index, ndim, code, bits, lanes) == (array.pointer, 2, 0, 2, 0, 16, 1)
    shape = ctypes.c_void_p.from_address(capsule.address + 24).value
    assert list((ctypes.c_int64 * 2).from_address(shape or 0)) == [2, 3]
    assert ctypes.c_void_p.from_address(capsule.address + 32).value is None  # contiguous
    host = fake.host(array.nbytes)
    fake.copy_down(host.address, array.pointer, array.nbytes, consumer)
    fake.finish(consumer)
    assert host.view("int16").tolist() == list(range(6)) and (array.numpy().ravel() == range(6)).all()
    assert not fake.violations
    assert array.requested == [consumer] and array.released == 0
    in_thread(capsule.consume)
    assert array.released == 1
    del capsule
    gc.collect()
    assert array.released == 1
    with pytest.raises(ValueError, match="forbids stream 0"):
        array.__dlpack__(stream=0)
    array.when_released = array.free
    del_without_use = array.__dlpack__()
    assert array.requested == [consumer, 0, None]
    del del_without_use
    assert array.released == 2 and fake.live("allocations") == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("asked", "right"), [("consumer", True), (None, False), (-1, False)])
def test_a_consumer_that_names_its_stream_is_ordered(
    new: Callable[..., Fake], seed: int, asked: Any, right: bool
) -> None:
    fake = new(mode="steps", seed=seed)
    consumer = fake.stream()
    array = DeviceArray(fake, 4, stream=fake.stream()).set(1)
    array.__dlpack__(stream=consumer if asked == "consumer" else asked)
    host = fake.host(16)
    fake.copy_down(host.address, array.pointer, 16, consumer)
    fake.run()
    assert bool(fake.violations) != right


def test_cuda_array_interface(new: Callable[..., Fake]) -> None:
    fake = new()
    array = DeviceArray(fake, (), "uint8", stream=0).set(7)
    interface = {"shape": (), "typestr": "|u1", "data": (array.pointer, False), "strides": None, "version": 3}
    assert array.__cuda_array_interface__ == {**interface, "stream": 1}
    array.interface_stream = 2
    assert array.__cuda_array_interface__["stream"] == 2
    fake.finish(0)
    assert array.numpy() == 7
    assert DeviceArray(fake, (0, 3)).set(1).numpy().shape == (0, 3)
    bfloat16 = DeviceArray(fake, 3, "uint16", code_and_bits=(4, 16))
    assert ctypes.c_uint8.from_address(Capsule(bfloat16.__dlpack__()).address + 20).value == 4


# --- the ledger ---


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("timing", [*(f"seed {seed}" for seed in SEEDS), "lucky", "threads"])
@pytest.mark.parametrize("scene", SCENES)
def test_the_ledger_objects_to_what_nothing_orders(
    new: Callable[..., Fake], scene: str, timing: str, ordered: bool
) -> None:
    """Whatever the timing was: also if everything ran in the right order, since it was run at once."""
    seed = int(timing.split()[1]) if timing.startswith("seed") else 1
    fake = new(mode="threads" if timing == "threads" else "steps", seed=seed, strict=False)
    SCENES[scene](fake, ordered, fake.run if timing == "lucky" else lambda: None)
    fake.run()
    fake.until(lambda: fake.pending() == 0)
    unordered = [text for text in fake.violations if text.startswith("nothing orders these")]
    assert bool(unordered) != ordered
    assert not ordered or not fake.violations


def test_a_violation_names_both(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    fake.copy_down(host, device, BYTES, stream)
    fake.run()
    fake.access(host + 10, 5, writes=False, who="lane 0")
    assert fake.violations == [
        f"nothing orders these: cuMemcpyDtoHAsync_v2 #1 (stream 1) writes registration 2 + 0 [{host:#x}, "
        f"{host + BYTES:#x}); lane 0 (host thread 1) reads registration 2 + 10 [{host + 10:#x}, {host + 15:#x})"
    ]


def test_the_ledger_stays_small(new: Callable[..., Fake]) -> None:
    fake = new(mode="steps")
    device, host, stream = fake.alloc(BYTES), fake.host(BYTES).address, fake.stream()
    for _ in range(500):
        fake.access(host, BYTES, writes=True)
        fake.copy_up(device, host, BYTES, stream)
        fake.copy_down(host, device, BYTES, stream)
        fake.finish(stream)
    assert not fake.violations
    assert fake.live("accesses") < 10


@pytest.mark.parametrize("lucky", [True, False])
def test_the_ledger_agrees_with_a_search(new: Callable[..., Fake], lucky: bool) -> None:
    """Random programs: it objects if, and only if, two accesses have no path; and to each that comes too early."""
    wrong = 0
    for seed in range(300):
        fake = new(mode="steps", seed=seed, queues=random.Random(seed).choice([0, 1, 2, 8]))
        program = RandomProgram(fake, random.Random(seed), lucky=lucky)
        assert fake.pending() == 0
        pairs = [re.findall(r"(#\d+|host-\d+) \(", violation) for violation in fake.violations]
        assert all((a, b) in program.unordered or (b, a) in program.unordered for a, b in pairs), seed
        assert bool(pairs) == bool(program.unordered), seed
        if lucky:  # all is done in the program's order: whatever has an earlier rival is named behind it
            assert {second for _, second in pairs} == {second for _, second in program.unordered}, seed
        wrong += bool(pairs)
    assert 100 < wrong < 280
