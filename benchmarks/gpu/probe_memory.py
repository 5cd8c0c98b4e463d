"""Questions of the probe about memory: what can be registered, at which cost, and how fast it is copied."""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List

import numpy as np

from benchmarks.gpu.driver import CudaDriver, HostBlock
from ddl.text.units import exact_bytes_text

__all__ = ["MIB", "computing", "copies", "memory", "register", "remove", "shared"]

MIB = 1 << 20
MADV_REMOVE = 9


def _scale(driver: CudaDriver, real: int, fake: int) -> int:
    """Return how much is done: the tests' driver copies with one core, and its times say nothing."""
    return fake if driver.is_fake else real


def _pattern(block: HostBlock, value: int) -> None:
    np.frombuffer(block.pages, np.uint8)[:] = value


def _content(block: HostBlock) -> int:
    """Return the value of all bytes; -1: they differ."""
    view = np.frombuffer(block.pages, np.uint8)
    return int(view[0]) if (view == view[0]).all() else -1


def register(driver: CudaDriver) -> Dict[str, Any]:
    """Milliseconds to register parts of a memfd whose pages are not there yet, and to take that back."""
    answer: Dict[str, Any] = {}
    for mib in (1, 16, 64, _scale(driver, 256, 64)):
        block = HostBlock(driver, mib * MIB, register=False)
        begin = time.perf_counter()
        block.register()
        registered = time.perf_counter() - begin
        same = block.device_address() == block.address
        begin = time.perf_counter()
        block.unregister()
        taken_back = time.perf_counter() - begin
        begin = time.perf_counter()
        block.register()
        again = time.perf_counter() - begin
        answer[f"{mib} MiB"] = {
            "ms": 1e3 * registered,
            "ms per MiB": 1e3 * registered / mib,
            "ms to take back": 1e3 * taken_back,
            "ms when the pages are there": 1e3 * again,
            "the GPU knows it by the same address": same,
        }
        block.unregister()
    return answer


_SECOND = """
import sys
from benchmarks.gpu.driver import CudaDriver, HostBlock
driver = CudaDriver()
block = HostBlock(driver, int(sys.argv[2]), descriptor=int(sys.argv[1]))
device, stream = driver.allocate(block.nbytes), driver.stream()
driver.up(device, block.address, block.nbytes, stream)
driver.finish(stream)
block.pages[:] = bytes(block.nbytes)
driver.down(block.address, device, block.nbytes, stream)
driver.finish(stream)
print("copied", flush=True)
sys.stdin.read()
"""


def shared(driver: CudaDriver) -> Dict[str, Any]:
    """Two processes register the same memfd at the same time, and copy to and from it."""
    nbytes = 4 * MIB
    block = HostBlock(driver, nbytes)
    _pattern(block, 77)
    os.set_inheritable(block.descriptor, True)
    line = [sys.executable, "-c", _SECOND, str(block.descriptor), str(nbytes)]
    with subprocess.Popen(line, pass_fds=[block.descriptor], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second:
        assert second.stdout is not None and second.stdin is not None
        said = second.stdout.readline().decode().strip()
        seen = _content(block)
        device, stream = driver.allocate(nbytes), driver.stream()
        driver.up(device, block.address, nbytes, stream)
        driver.finish(stream)
        _pattern(block, 0)
        driver.down(block.address, device, nbytes, stream)
        driver.finish(stream)
        own = _content(block)
        second.stdin.close()
    return {"the second process": said or "failed", "its copy is right here": seen == 77, "so is ours": own == 77}


def remove(driver: CudaDriver) -> Dict[str, Any]:
    """Pages are given back (MADV_REMOVE) under a registration: does the GPU still write where we read?"""
    block = HostBlock(driver, 4 * MIB)
    device, stream = driver.allocate(block.nbytes), driver.stream()
    _pattern(block, 1)
    driver.up(device, block.address, block.nbytes, stream)
    driver.finish(stream)
    block.pages.madvise(getattr(mmap, "MADV_REMOVE", MADV_REMOVE))
    emptied = _content(block) == 0
    driver.down(block.address, device, block.nbytes, stream)
    driver.finish(stream)
    return {"the pages were empty afterwards": emptied, "a later copy arrives where we read": _content(block) == 1}


@contextlib.contextmanager
def computing() -> Iterator[bool]:
    """Keep the GPU computing meanwhile, if there is a torch that can; yield whether it does."""
    if os.environ.get("DDL_CUDA_LIBRARY") or importlib.util.find_spec("torch") is None:
        yield False
        return
    import torch

    if not torch.cuda.is_available():
        yield False
        return
    stop: List[bool] = []
    matrix = torch.ones(4096, 4096, device="cuda")

    def compute() -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            while not stop:
                for _ in range(8):
                    torch.mm(matrix, matrix)
                stream.synchronize()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(compute)
        time.sleep(0.2)
        try:
            yield True
        finally:
            stop.append(True)
            working.result(60)


class _CopyRun:
    """Copies of one size between registered memory and the device, on a stream for each direction."""

    def __init__(self, driver: CudaDriver, most: int) -> None:
        self.driver = driver
        self.host = {way: HostBlock(driver, most) for way in ("down", "up")}
        self.device = {way: driver.allocate(most) for way in ("down", "up")}
        self.stream = {way: driver.stream() for way in ("down", "up")}

    def rate(self, ways: List[str], nbytes: int, count: int) -> float:
        """Return the bytes per second of each direction, of so many copies in a row."""
        driver = self.driver
        begin = time.perf_counter()
        for _ in range(count):
            for way in ways:
                if way == "down":
                    driver.down(self.host[way].address, self.device[way], nbytes, self.stream[way])
                else:
                    driver.up(self.device[way], self.host[way].address, nbytes, self.stream[way])
        driver.finish(*(self.stream[way] for way in ways))
        return nbytes * count / (time.perf_counter() - begin)


def copies(driver: CudaDriver) -> Dict[str, Any]:
    """GB/s of each direction, alone and both at once; and both while the GPU computes."""
    sizes = [64 << 10, 256 << 10, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB, 64 * MIB]
    sizes = sizes[: _scale(driver, len(sizes), 3)]
    run = _CopyRun(driver, sizes[-1])
    answer: Dict[str, Any] = {}
    both = {"down": ["down"], "up": ["up"], "both": ["down", "up"]}

    def median(name: str, nbytes: int) -> float:
        count = max(4, min(200, _scale(driver, 1 << 30, MIB) // nbytes))
        run.rate(both[name], nbytes, 2)
        return statistics.median(run.rate(both[name], nbytes, count) for _ in range(_scale(driver, 7, 1)))

    for nbytes in sizes:
        answer[exact_bytes_text(nbytes)] = {f"GB/s {name}": median(name, nbytes) / 1e9 for name in both}
    rates = {name: median(name, sizes[-1]) for name in ("down", "up")}
    each = median("both", sizes[-1])
    rates.update(both_down=each, both_up=each)
    answer["rates"] = rates
    with computing() as busy:
        if busy:
            answer["while a stream computes"] = {f"GB/s {name}": median(name, sizes[-1]) / 1e9 for name in both}
    return answer


def memory(driver: CudaDriver) -> Dict[str, Any]:
    """Bytes per second that all cores together read and write on the host, by copies larger than their caches."""
    cores = len(os.sched_getaffinity(0))
    length = _scale(driver, 256 * MIB, MIB) // 8
    arrays = [(np.zeros(length), np.ones(length)) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:

        def copied(count: int) -> float:
            def repeat(pair: Any) -> None:
                for _ in range(count):
                    np.copyto(*pair)

            begin = time.perf_counter()
            list(pool.map(repeat, arrays))
            return 2 * 8 * length * cores * count / (time.perf_counter() - begin)

        copied(1)
        rate = statistics.median(copied(4) for _ in range(3))
    begin = time.perf_counter()
    for _ in range(4):
        np.copyto(*arrays[0])
    alone = 2 * 8 * length * 4 / (time.perf_counter() - begin)
    return {"cores": cores, "bytes_per_second": rate, "bytes_per_second of one core": alone}
