"""The test's hand on the fake driver: calls of the driver (calls.py), control of what runs when, and the ledger."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from device.fake_cuda.build import library
from device.fake_cuda.calls import DriverCalls
from device.fake_cuda.entries import ENTRIES, load


class Fake(DriverCalls):
    """The fake driver of this process, as new, with the context of device 0 current in this thread.

    ``mode``: ``steps`` (the test runs commands by ``step`` and ``run``) or ``threads`` (the driver's threads do).
    ``queues``: of the hardware, for all streams of a device; 0: each stream has its own. ``strict``: a copy from or to
    host memory that is not registered is an error. ``start=False`` makes no call of the driver, ``reset=False`` leaves
    everything as it is (in a rank's process, where DDL uses the fake).
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        mode: str = "threads",
        queues: int = 8,
        devices: int = 1,
        strict: bool = True,
        start: bool = True,
        reset: bool = True,
    ) -> None:
        super().__init__(load(os.environ.get("DDL_CUDA_LIBRARY") or str(library())))
        if reset:
            self.library.fake_reset(seed, int(mode == "steps"), queues, devices, int(strict))
        self.steps = bool(self.library.fake_steps())
        if start:
            self.start()

    @staticmethod
    def environment(
        *,
        seed: int = 1,
        mode: str = "threads",
        queues: int = 8,
        devices: int = 1,
        strict: bool = True,
        refuse: Optional[Dict[str, int]] = None,
        options: Optional[Dict[str, int]] = None,
        fail: Optional[Tuple[int, int]] = None,
        paused: bool = False,
        report: Optional[Path] = None,
    ) -> Dict[str, str]:
        """Return the variables with which another process's DDL uses a fake like this.

        ``refuse``: the error of each entry whose calls all fail. ``options``: see control.cc. ``fail``: the error that
        all devices have, after so many commands. ``paused``: no command ever runs. ``report``: a file to which a
        process appends its violations when it exits; without any, there is no file.
        """
        settings = {"SEED": seed, "MODE": mode, "QUEUES": queues, "DEVICES": devices, "STRICT": int(strict)}
        variables = {f"FAKE_CUDA_{name}": str(setting) for name, setting in settings.items()}
        if refuse:
            for name in refuse:
                Fake._entry(name)
            variables["FAKE_CUDA_REFUSE"] = ",".join(f"{name}={code}" for name, code in refuse.items())
        if options:
            variables["FAKE_CUDA_OPTIONS"] = ",".join(f"{name}={number}" for name, number in options.items())
        if fail is not None:
            variables["FAKE_CUDA_FAIL"] = ":".join(map(str, fail))
        if paused:
            variables["FAKE_CUDA_PAUSED"] = "1"
        if report is not None:
            variables["FAKE_CUDA_REPORT"] = str(report)
        return {"DDL_CUDA_LIBRARY": str(library()), **variables}

    def reset(self) -> None:
        """Leave nothing behind: no thread, no memory, no violation."""
        self.library.fake_reset(1, 0, 8, 1, 1)
        self._kept.clear()

    # --- control ---

    def step(self, count: int = 1) -> int:
        """Run up to ``count`` commands that can be run, chosen by the seed; return how many ran."""
        return int(self.library.fake_step(count))

    def run(self) -> int:
        """Run commands until none can be run; return how many ran."""
        return self.step(1_000_000)

    def pause(self, paused: bool = True) -> None:
        """Stop the driver's threads between commands, or let them go on."""
        self.library.fake_pause(int(paused))

    def until(self, condition: Callable[[], bool], *, timeout: float = 100.0) -> None:
        """Run commands, or let them run, until the condition holds; raise ``TimeoutError`` if it never does."""
        deadline = time.monotonic() + timeout
        while not condition():
            if self.steps and self.step() == 1:
                continue
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.pending()} commands of the fake are pending")
            time.sleep(0.0001)

    @contextmanager
    def driven(self) -> Iterator[None]:
        """Run commands in a thread meanwhile, in an order that the seed chooses: the test may block (mode steps)."""
        stop = threading.Event()

        def drive() -> None:
            while not stop.is_set():
                if self.step() == 0:
                    time.sleep(0.0001)

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def finish(self, stream: int) -> None:
        """Wait, on the host, for all that the stream has queued: this thread knows of it then."""
        self.until(lambda: self.stream_done(stream))

    def pending(self) -> int:
        """Return how many commands are queued or running."""
        return int(self.library.fake_pending())

    def fail(self, code: int, after: int = 0) -> None:
        """Let all devices fail with this error, for good, when ``after`` more commands have been executed."""
        self.library.fake_fail(code, after)

    def refuse(self, entry: str, code: int, count: int = -1) -> None:
        """Let the next ``count`` calls of an entry (-1: all) return this error and do nothing."""
        self.library.fake_refuse(self._entry(entry), code, count)

    def calls(self, entry: str) -> int:
        """Return how often an entry was called, refused calls included."""
        return int(self.library.fake_calls(self._entry(entry)))

    def option(self, name: str, value: int = 1) -> None:
        """Set an option until the next reset; they are listed in control.cc."""
        self.library.fake_option(name.encode(), value)

    def live(self, what: str) -> int:
        """Return how many "streams", "events", "allocations", "registrations" or "contexts" there are.

        "full queues": how many calls have met one that stood still, and waited.
        """
        count = int(self.library.fake_live(what.encode()))
        if count == ctypes.c_size_t(-1).value:
            raise ValueError(f"the fake does not count {what!r}")
        return count

    def capture_begin(self, stream: int, mode: int = 0) -> None:
        """Begin to capture a graph: the mode is 0 (global), 1 (thread-local) or 2 (relaxed)."""
        self.library.fake_capture_begin(stream, mode)

    def capture_end(self, stream: int) -> int:
        """End the capture; return 0, 901 if it was spoilt, or 904 if it leaves a stream that nothing waits for."""
        return int(self.library.fake_capture_end(stream))

    @property
    def violations(self) -> List[str]:
        """What was done without order, or in another way that no driver forgives."""
        texts = [self.library.fake_violation(index) for index in range(self.library.fake_violations())]
        return [text.decode() for text in texts]

    def name(self, address: int) -> str:
        """Return what an address belongs to."""
        return str(self.library.fake_name(address).decode())

    def peek(self, pointer: int, bytes: int) -> bytes:
        """Return what is in device memory: an access of this thread."""
        content = ctypes.create_string_buffer(max(bytes, 1))
        if self.library.fake_peek(pointer, content, bytes) != 0:
            raise ValueError(f"{bytes} bytes at {pointer:#x}, which is {self.name(pointer)}, cannot be read")
        return content.raw[:bytes]

    def poke(self, pointer: int, content: bytes) -> None:
        """Write to device memory: an access of this thread."""
        if self.library.fake_poke(pointer, content, len(content)) != 0:
            raise ValueError(f"{len(content)} bytes at {pointer:#x}, which is {self.name(pointer)}, cannot be written")

    # --- the hooks that DDL's core calls ---

    def access(self, address: int, bytes: int, *, writes: bool, who: str = "test") -> None:
        """Tell the ledger that this thread reads or writes host memory now."""
        self.library.ddl_ledger_access(address, bytes, int(writes), who.encode())

    def release(self, token: int) -> None:
        """Tell the ledger that who acquires the token knows of all that this thread has done."""
        self.library.ddl_ledger_release(token)

    def acquire(self, token: int, *, at_least: Optional[int] = None) -> None:
        """Tell the ledger that this thread has seen the token's release, or that a flag has at least this value."""
        if at_least is None:
            self.library.ddl_ledger_acquire(token)
        else:
            self.library.ddl_ledger_acquire_at_least(token, at_least)

    @staticmethod
    def _entry(name: str) -> bytes:
        if name not in ENTRIES:
            raise ValueError(f"the driver has no {name}")
        return name.encode()
