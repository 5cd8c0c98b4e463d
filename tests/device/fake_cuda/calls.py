"""Calls of the driver as a framework makes them: what the fake and a real driver have in common, for tests.

``Fake`` (fake.py) adds control of what runs when, and a ledger; ``RealDriver`` (real.py) has a GPU.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from device.fake_cuda.entries import HOST_FUNCTION, DriverError
from device.fake_cuda.host import HostMemory

NOT_READY = 600
_POINTER_ATTRIBUTES = {
    "context": (1, ctypes.c_void_p),
    "memory_type": (2, ctypes.c_uint),
    "is_managed": (8, ctypes.c_uint),
    "ordinal": (9, ctypes.c_int),
    "range_start": (11, ctypes.c_uint64),
    "range_size": (12, ctypes.c_size_t),
}


class DriverCalls:
    """A driver that is loaded: ``library`` has the types of all its functions set."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._kept: List[Any] = []

    def start(self) -> None:
        """Make the context of device 0 current in this thread."""
        self.check("cuInit", 0)
        self.set_context(self.retain())

    def keep(self, thing: object) -> None:
        """Let the thing live until the next reset."""
        self._kept.append(thing)

    # --- what each driver does in its own way ---

    @property
    def violations(self) -> List[str]:
        """What was done without order, as far as this driver sees it."""
        return []

    def finish(self, stream: int) -> None:
        """Wait, on the host, for all that the stream has queued: this thread knows of it then."""
        raise NotImplementedError

    def peek(self, pointer: int, bytes: int) -> bytes:
        """Return what is in device memory: an access of this thread."""
        raise NotImplementedError

    def access(self, address: int, bytes: int, *, writes: bool, who: str = "test") -> None:
        """Tell the ledger, if there is one, that this thread reads or writes host memory now."""

    def capture_begin(self, stream: int, mode: int = 0) -> None:
        """Begin to capture a graph: the mode is 0 (global), 1 (thread-local) or 2 (relaxed)."""
        raise NotImplementedError

    def capture_end(self, stream: int) -> int:
        """End the capture; return 0, or the error that says how it was spoilt."""
        raise NotImplementedError

    # --- calls of the driver ---

    def code(self, entry: str, *arguments: Any) -> int:
        """Call an entry of the driver; return its error, or 0."""
        return int(getattr(self.library, entry)(*arguments))

    def check(self, entry: str, *arguments: Any) -> None:
        """Call an entry of the driver; raise ``DriverError`` if it fails."""
        code = self.code(entry, *arguments)
        if code != 0:
            raise DriverError(entry, code)

    def _ready(self, entry: str, handle: int) -> bool:
        code = self.code(entry, handle)
        if code not in (0, NOT_READY):
            raise DriverError(entry, code)
        return code == 0

    def _new(self, entry: str, *arguments: Any) -> int:
        handle = ctypes.c_void_p()
        self.check(entry, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def retain(self, device: int = 0) -> int:
        """Return the primary context of a device, retained once more."""
        return self._new("cuDevicePrimaryCtxRetain", device)

    def context(self) -> int:
        """Return the current context of this thread; 0: it has none."""
        return self._new("cuCtxGetCurrent")

    def set_context(self, context: int) -> None:
        """Make the context this thread's current one."""
        self.check("cuCtxSetCurrent", context)

    @contextmanager
    def pushed(self, context: int) -> Iterator[None]:
        """Have the context current in this thread, for a while."""
        self.check("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.check("cuCtxPopCurrent_v2", None)

    def alloc(self, bytes: int) -> int:
        """Return the address of new device memory."""
        pointer = ctypes.c_uint64()
        self.check("cuMemAlloc_v2", ctypes.byref(pointer), bytes)
        return pointer.value

    def free(self, pointer: int) -> None:
        """Free device memory; its content is poison then."""
        self.check("cuMemFree_v2", pointer)

    def host(self, bytes: int, *, register: bool = True) -> HostMemory:
        """Return new host memory, registered unless the test says otherwise."""
        return HostMemory(self, bytes, register=register)

    def register(self, address: int, bytes: int) -> None:
        """Register host memory for all contexts, with a device address."""
        self.check("cuMemHostRegister_v2", address, bytes, 3)

    def unregister(self, address: int) -> None:
        """Unregister the host memory that begins there."""
        self.check("cuMemHostUnregister", address)

    def stream(self, *, blocking: bool = False) -> int:
        """Return a new stream; a blocking one waits for the legacy stream, and is waited for by it."""
        return self._new("cuStreamCreateWithPriority", 0 if blocking else 1, 0)

    def event(self) -> int:
        """Return a new event, without timing."""
        return self._new("cuEventCreate", 2)

    def record(self, event: int, stream: int) -> None:
        """Record what the stream has now."""
        self.check("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Let what comes later on the stream wait for what the event has recorded until now."""
        self.check("cuStreamWaitEvent", stream, event, 0)

    def order(self, before: int, after: int) -> None:
        """Let what comes later on stream ``after`` wait for what stream ``before`` has now."""
        event = self.event()
        self.record(event, before)
        self.wait(after, event)
        self.check("cuEventDestroy_v2", event)

    def event_done(self, event: int) -> bool:
        """Whether all that the event recorded has been done."""
        return self._ready("cuEventQuery", event)

    def stream_done(self, stream: int) -> bool:
        """Whether all that the stream has queued has been done."""
        return self._ready("cuStreamQuery", stream)

    def copy_down(self, host: int, device: int, bytes: int, stream: int) -> None:
        """Queue a copy from device memory to host memory."""
        self.check("cuMemcpyDtoHAsync_v2", host, device, bytes, stream)

    def copy_up(self, device: int, host: int, bytes: int, stream: int) -> None:
        """Queue a copy from host memory to device memory."""
        self.check("cuMemcpyHtoDAsync_v2", device, host, bytes, stream)

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Queue a store of a word, behind all that the stream has."""
        self.check("cuStreamWriteValue32_v2", stream, address, value, 0)

    def wait_value(self, stream: int, address: int, value: int, *, condition: int = 0) -> None:
        """Queue a wait until a word is at least ``value`` (condition 0), or equal to it (1)."""
        self.check("cuStreamWaitValue32_v2", stream, address, value, condition)

    def call_on_host(self, stream: int, function: Callable[[], None]) -> None:
        """Queue a call of a function by the driver's thread."""
        callback = HOST_FUNCTION(lambda _: function())
        self.keep(callback)
        self.check("cuLaunchHostFunc", stream, callback, None)

    def pointer_attributes(self, pointer: int) -> Dict[str, Optional[int]]:
        """Return what the driver tells of an address."""
        values: List[Any] = [kind() for _, kind in _POINTER_ATTRIBUTES.values()]
        numbers = (ctypes.c_int * len(values))(*(number for number, _ in _POINTER_ATTRIBUTES.values()))
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.check("cuPointerGetAttributes", len(values), numbers, addresses, pointer)
        return {name: value.value for name, value in zip(_POINTER_ATTRIBUTES, values)}

    def exchange_capture_mode(self, mode: int) -> int:
        """Set how much this thread heeds captures of others; return how much it did."""
        former = ctypes.c_int(mode)
        self.check("cuThreadExchangeStreamCaptureMode", ctypes.byref(former))
        return int(former.value)

    def capturing(self, stream: int) -> int:
        """Return 0: no, 1: the stream is being captured, 2: it was, but the capture is spoilt."""
        status = ctypes.c_int()
        self.check("cuStreamIsCapturing", stream, ctypes.byref(status))
        return status.value
