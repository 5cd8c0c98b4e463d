"""The fake driver starts, has contexts, and keeps device memory and registered memory apart.

No test here is about DDL: they prove the tool with which others prove DDL's order.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from typing import Callable

import pytest
from device.fake_checks import MODES, fails
from device.fake_cuda import ENTRIES, DeviceArray, Fake, library
from device.fake_cuda.scenes import in_thread, store

pytestmark = pytest.mark.fake_driver("it is what is tested here")

# --- start, contexts, devices ---


def test_exports_are_the_names_that_ddl_may_call() -> None:
    if (nm := shutil.which("nm")) is None:
        pytest.skip("there is no nm (package binutils) to read the names that the library exports")
    shown = subprocess.run([nm, "-D", "--defined-only", library()], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    assert {name for name in names if name.startswith("cu")} == set(ENTRIES)
    assert len(ENTRIES) == 42
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
        thread.join(100)
    assert freed.is_set() and asked.is_set()
    assert not fake.violations
