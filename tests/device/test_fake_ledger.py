"""Arrays of the fake driver, and its ledger: it objects to what nothing orders, however it was timed.

No test here is about DDL: they prove the tool with which others prove DDL's order.
"""

from __future__ import annotations

import ctypes
import gc
import random
import re
from typing import Any, Callable

import numpy as np
import pytest
from device.fake_checks import SEEDS
from device.fake_cuda import (
    DeviceArray,
    Fake,
    memory_scenes,  # noqa: F401  it adds to SCENES
)
from device.fake_cuda.random_program import RandomProgram
from device.fake_cuda.scenes import BYTES, SCENES, in_thread

pytestmark = pytest.mark.fake_driver("it is what is tested here")

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


@pytest.mark.few(185)
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


@pytest.mark.few(1)
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
