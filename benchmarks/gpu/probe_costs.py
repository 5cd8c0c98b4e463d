"""Questions of the probe about time: what calls of the driver cost, and when the host sees what streams write."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict

from benchmarks.gpu.driver import CudaDriver, CudaError, HostBlock

__all__ = ["costs", "visible"]


def _microseconds(call: Callable[[], object], count: int = 200, between: Callable[[], object] = lambda: None) -> float:
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
        between()
    return statistics.median(times) / 1e3


def costs(driver: CudaDriver) -> Dict[str, Any]:
    """Microseconds of a call on the host, through ctypes; the first line says what ctypes itself costs."""
    block = HostBlock(driver, 1 << 20)
    word, device = block.device_address(), driver.allocate(1 << 20)
    stream, other, event = driver.stream(), driver.stream(), driver.event()
    library = driver.library

    def settle() -> None:
        driver.finish(stream, other)

    driver.call("cuEventRecord", event, stream)
    settle()
    count = 20 if driver.is_fake else 500
    attribute: Callable[[], object] = lambda: driver.attribute(16)  # noqa: E731
    calls: Dict[str, Callable[[], object]] = {
        "an attribute (no work at all)": attribute,
        "query an event that has ended": lambda: library.cuEventQuery(event),
        "query a stream that has ended": lambda: library.cuStreamQuery(stream),
        "record an event": lambda: library.cuEventRecord(event, stream),
        "make a stream wait for it": lambda: library.cuStreamWaitEvent(other, event, 0),
        "queue a copy down of 4 KiB": lambda: driver.down(block.address, device, 4096, stream),
        "queue a copy up of 4 KiB": lambda: driver.up(device, block.address, 4096, stream),
        "queue a copy down of 1 MiB": lambda: driver.down(block.address, device, 1 << 20, stream),
    }
    if driver.has("cuStreamWriteValue32_v2"):
        calls["write a word"] = lambda: driver.call("cuStreamWriteValue32_v2", stream, word, 1, 0)
    return {
        f"µs to {name}" if name[0] != "a" else f"µs of {name}": _microseconds(call, count, settle)
        for name, call in calls.items()
    }


def visible(driver: CudaDriver) -> Dict[str, Any]:
    """Microseconds from the call until the host sees it: a word, a copy and its word, a copy and its event."""
    block = HostBlock(driver, 1 << 20)
    word, address = block.word(), block.device_address()
    device, stream, event = driver.allocate(1 << 20), driver.stream(), driver.event()
    count = 20 if driver.is_fake else 300
    value = 0
    late = 0

    def until(ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not ready():
            if time.monotonic() > deadline:
                raise CudaError("what a stream has written was not seen within 10 s")

    def write() -> None:
        nonlocal value
        value += 1
        driver.call("cuStreamWriteValue32_v2", stream, address, value, 0)

    def a_word() -> None:
        write()
        until(lambda: word.value == value)

    def a_copy_and_a_word(nbytes: int) -> None:
        nonlocal late
        block.word(1024).value = 7
        driver.down(block.address + 4096, device, nbytes, stream)
        write()
        until(lambda: word.value == value)
        late += block.word(1024).value == 7

    def a_copy_and_an_event(nbytes: int) -> None:
        driver.down(block.address + 4096, device, nbytes, stream)
        driver.call("cuEventRecord", event, stream)
        until(lambda: driver.library.cuEventQuery(event) == 0)

    driver.up(device, block.address, 1 << 20, stream)
    driver.finish(stream)
    answer: Dict[str, Any] = {}
    if driver.has("cuStreamWriteValue32_v2"):
        answer["µs until a word is seen"] = _microseconds(a_word, count)
        answer["µs until a copy of 4 KiB and its word are seen"] = _microseconds(lambda: a_copy_and_a_word(4096), count)
        answer["words that were seen before their copy"] = late
    answer["µs until a copy of 4 KiB and its event are seen"] = _microseconds(lambda: a_copy_and_an_event(4096), count)
    if late:
        raise CudaError(f"{late} words were seen before the copy that they come behind")
    return answer
