"""The names that the fake exports, with their arguments: first those of the driver, then those of the fake's own."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Tuple

HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class IpcHandle(ctypes.Structure):
    """A handle of memory for another process: 64 bytes, given by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


class DriverError(Exception):
    """A call of the driver failed: ``entry`` is its name, ``code`` its error."""

    def __init__(self, entry: str, code: int) -> None:
        super().__init__(f"{entry}: error {code}")
        self.entry, self.code = entry, code


_int, _handle = POINTER(c_int), POINTER(c_void_p)

#: Each returns its error, an int.
ENTRIES: Dict[str, List[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [_int],
    "cuDeviceGetCount": [_int],
    "cuDeviceGet": [_int, c_int],
    "cuDeviceGetAttribute": [_int, c_int, c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceTotalMem_v2": [POINTER(c_size_t), c_int],
    "cuDeviceGetUuid_v2": [c_char_p, c_int],
    "cuDeviceGetPCIBusId": [c_char_p, c_int, c_int],
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuDevicePrimaryCtxGetState": [c_int, POINTER(c_uint), _int],
    "cuDevicePrimaryCtxRetain": [_handle, c_int],
    "cuDevicePrimaryCtxRelease_v2": [c_int],
    "cuCtxGetCurrent": [_handle],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [_handle],
    "cuStreamCreateWithPriority": [_handle, c_uint, c_int],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamQuery": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuStreamIsCapturing": [c_void_p, _int],
    "cuThreadExchangeStreamCaptureMode": [_int],
    "cuEventCreate": [_handle, c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuMemHostGetDevicePointer_v2": [POINTER(c_uint64), c_void_p, c_uint],
    "cuPointerGetAttributes": [c_uint, _int, _handle, c_uint64],
    "cuStreamWriteValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuStreamWaitValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemGetAddressRange_v2": [POINTER(c_uint64), POINTER(c_size_t), c_uint64],
    "cuIpcGetMemHandle": [POINTER(IpcHandle), c_uint64],
    "cuIpcOpenMemHandle_v2": [POINTER(c_uint64), IpcHandle, c_uint],
    "cuIpcCloseMemHandle": [c_uint64],
    "cuLaunchHostFunc": [c_void_p, HOST_FUNCTION, c_void_p],
}

_CONTROLS: Dict[str, Tuple[Any, List[Any]]] = {
    "fake_reset": (None, [c_uint64, c_int, c_int, c_int, c_int]),
    "fake_steps": (c_int, []),
    "fake_step": (c_int, [c_int]),
    "fake_pause": (None, [c_int]),
    "fake_pending": (c_size_t, []),
    "fake_fail": (None, [c_int, c_int]),
    "fake_refuse": (None, [c_char_p, c_int, c_int]),
    "fake_calls": (c_uint64, [c_char_p]),
    "fake_option": (None, [c_char_p, c_int64]),
    "fake_live": (c_size_t, [c_char_p]),
    "fake_capture_begin": (None, [c_void_p, c_int]),
    "fake_capture_end": (c_int, [c_void_p]),
    "fake_violations": (c_int, []),
    "fake_violation": (c_char_p, [c_int]),
    "fake_name": (c_char_p, [c_uint64]),
    "fake_peek": (c_int, [c_uint64, c_void_p, c_size_t]),
    "fake_poke": (c_int, [c_uint64, c_void_p, c_size_t]),
    "ddl_ledger_access": (None, [c_void_p, c_size_t, c_int, c_char_p]),
    "ddl_ledger_release": (None, [c_void_p]),
    "ddl_ledger_acquire": (None, [c_void_p]),
    "ddl_ledger_acquire_at_least": (None, [c_void_p, c_uint32]),
}


def load(path: str) -> ctypes.CDLL:
    """Return the library with the types of all its functions set.

    It may be an older driver, which lacks some, or a real one, which has no controls.
    """
    driver = ctypes.CDLL(path)
    for name, (result, arguments) in {**{name: (c_int, of) for name, of in ENTRIES.items()}, **_CONTROLS}.items():
        if hasattr(driver, name):
            function = getattr(driver, name)
            function.restype, function.argtypes = result, arguments
    return driver
