"""The driver of a real GPU, for the tests that the fake and it can both run: no control, no ledger, no scheduler."""

from __future__ import annotations

import ctypes
import os
import time

from device.fake_cuda.calls import DriverCalls
from device.fake_cuda.entries import DriverError, load


class RealDriver(DriverCalls):
    """The driver of this process, with the context of device 0 current in this thread."""

    def __init__(self) -> None:
        super().__init__(load(os.environ.get("DDL_CUDA_LIBRARY") or "libcuda.so.1"))
        self.start()
        self._copies = 0

    def finish(self, stream: int, *, timeout: float = 100.0) -> None:
        """Wait, on the host, for all that the stream has queued."""
        deadline = time.monotonic() + timeout
        while not self.stream_done(stream):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the stream did not end within {timeout:g} s")
            time.sleep(0.0001)

    def peek(self, pointer: int, bytes: int) -> bytes:
        """Return what is in device memory, by a stream that waits for no other."""
        if bytes == 0:
            return b""
        self._copies = self._copies or self.stream()
        target = self.host(bytes)
        self.copy_down(target.address, pointer, bytes, self._copies)
        self.finish(self._copies)
        return target.array.tobytes()

    def capture_begin(self, stream: int, mode: int = 0) -> None:
        """Begin to capture a graph."""
        code = self.library.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), mode)
        if code != 0:
            raise DriverError("cuStreamBeginCapture_v2", code)

    def capture_end(self, stream: int) -> int:
        """End the capture, and throw the graph away; return 0, or the error that says how it was spoilt."""
        graph = ctypes.c_void_p()
        code = int(self.library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)))
        if graph.value:
            self.library.cuGraphDestroy(graph)
        return code
