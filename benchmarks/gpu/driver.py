"""The driver of the GPU (libcuda.so.1) through ctypes: what the probe calls of it, and no more.

A table of the probe's own, so that it asks the driver and not DDL. ``DDL_CUDA_LIBRARY`` names another library: the
tests' driver, which needs no GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Optional

__all__ = ["CudaDriver", "CudaError", "HostBlock", "NOT_READY"]

NOT_READY = 600
PORTABLE_AND_MAPPED = 3

_int, _handle = POINTER(c_int), POINTER(c_void_p)
_FUNCTIONS: Dict[str, List[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [_int],
    "cuDeviceGetCount": [_int],
    "cuDeviceGet": [_int, c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetAttribute": [_int, c_int, c_int],
    "cuDeviceGetPCIBusId": [c_char_p, c_int, c_int],
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuDevicePrimaryCtxRetain": [_handle, c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuStreamCreateWithPriority": [_handle, c_uint, c_int],
    "cuStreamQuery": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuEventCreate": [_handle, c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuMemHostGetDevicePointer_v2": [POINTER(c_uint64), c_void_p, c_uint],
    "cuStreamWriteValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuStreamWaitValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
}


class CudaError(Exception):
    """A call of the driver failed."""


class CudaDriver:
    """The driver with the context that torch uses, too, current in this thread. Raises ``CudaError``."""

    def __init__(self, device: int = 0) -> None:
        name = os.environ.get("DDL_CUDA_LIBRARY") or "libcuda.so.1"
        try:
            self.library = ctypes.CDLL(name)
        except OSError as error:
            raise CudaError(f"{name} cannot be loaded: {error}") from error
        self.is_fake = hasattr(self.library, "fake_reset")
        for function, arguments in _FUNCTIONS.items():
            if self.has(function):
                entry = getattr(self.library, function)
                entry.restype, entry.argtypes = c_int, arguments
        self.call("cuInit", 0)
        count = c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        self.count = count.value
        number = c_int()
        self.call("cuDeviceGet", ctypes.byref(number), device)
        self.device = number.value
        self.blocks: List[HostBlock] = []  # pages must not go while they are registered
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.context = context.value
        self.enter()

    def enter(self) -> None:
        """Make the context this thread's."""
        self.call("cuCtxSetCurrent", self.context)

    def has(self, function: str) -> bool:
        """Return whether the library exports a function."""
        return hasattr(self.library, function)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function; raise if it fails."""
        if not self.has(function):
            raise CudaError(f"this driver has no {function}")
        code = getattr(self.library, function)(*arguments)
        if code != 0:
            raise CudaError(f"{function}: {self.error_name(code)} ({code})")

    def error_name(self, code: int) -> str:
        """Return the driver's name of an error."""
        text = c_char_p()
        if self.library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value:
            return text.value.decode()
        return "unknown error"

    def attribute(self, number: int) -> Optional[int]:
        """Return an attribute of the device; None: this driver does not know it."""
        value = c_int()
        failed = self.library.cuDeviceGetAttribute(ctypes.byref(value), number, self.device)
        return None if failed else value.value

    def name(self) -> str:
        """Return the name of the device."""
        if not self.has("cuDeviceGetName"):
            return "fake" if self.is_fake else "unknown"
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode()

    def _new(self, function: str, *arguments: Any) -> int:
        handle = c_void_p()
        self.call(function, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def stream(self) -> int:
        """Return a new stream that does not wait for the legacy stream."""
        return self._new("cuStreamCreateWithPriority", 1, 0)

    def event(self) -> int:
        """Return a new event, without timing."""
        return self._new("cuEventCreate", 2)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory of the device."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), nbytes)
        return pointer.value

    def down(self, host: int, device: int, nbytes: int, stream: int) -> None:
        """Queue a copy from the device."""
        self.call("cuMemcpyDtoHAsync_v2", host, device, nbytes, stream)

    def up(self, device: int, host: int, nbytes: int, stream: int) -> None:
        """Queue a copy to the device."""
        self.call("cuMemcpyHtoDAsync_v2", device, host, nbytes, stream)

    def ended(self, stream: int) -> bool:
        """Return whether a stream has done all that it has."""
        code = self.library.cuStreamQuery(stream)
        if code not in (0, NOT_READY):
            raise CudaError(f"cuStreamQuery: {self.error_name(code)} ({code})")
        return bool(code == 0)

    def finish(self, *streams: int, seconds: float = 20.0) -> None:
        """Wait until streams have done all that they have; raise ``CudaError`` after so many seconds."""
        deadline = time.monotonic() + seconds
        for stream in streams:
            while not self.ended(stream):
                if time.monotonic() > deadline:
                    raise CudaError(f"a stream did not end within {seconds:g} s")
                if self.is_fake:
                    time.sleep(0.0001)


class HostBlock:
    """Memory of the host in a memfd, as DDL's arena is: ``address``, and ``pages`` to look at it."""

    def __init__(self, driver: CudaDriver, nbytes: int, *, register: bool = True, descriptor: int = -1) -> None:
        self.driver, self.nbytes = driver, nbytes
        self.descriptor = descriptor if descriptor >= 0 else os.memfd_create("probe")
        if descriptor < 0:
            os.ftruncate(self.descriptor, nbytes)
        self.pages = mmap.mmap(self.descriptor, nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        driver.blocks.append(self)
        if register:
            self.register()

    def register(self) -> None:
        """Let the GPU read and write it."""
        self.driver.call("cuMemHostRegister_v2", self.address, self.nbytes, PORTABLE_AND_MAPPED)

    def unregister(self) -> None:
        """Take that back."""
        self.driver.call("cuMemHostUnregister", self.address)

    def device_address(self) -> int:
        """Return the address by which the GPU knows it."""
        pointer = c_uint64()
        self.driver.call("cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), self.address, 0)
        return pointer.value

    def word(self, index: int = 0) -> c_uint32:
        """Return a word of it: its ``value`` is what is there now."""
        return c_uint32.from_address(self.address + 4 * index)
