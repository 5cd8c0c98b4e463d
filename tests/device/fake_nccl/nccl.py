"""The test's hand on the fake NCCL: calls of the library as a framework makes them, and what a rank starts with."""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Dict, List, Optional

from device.fake_cuda import library as driver_library
from device.fake_nccl.build import library

IN_PROGRESS = 7
UNDEFINED = -(2**31)  #: of a field of a config that is not set

#: NCCL's numbers, by numpy's names and DDL's.
TYPES = {
    name: number
    for number, name in enumerate(
        "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16".split(),
    )
}
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "average": 4}


class NcclError(Exception):
    """A call failed: ``entry`` is its name, ``code`` its error."""

    def __init__(self, entry: str, code: int, text: str) -> None:
        super().__init__(f"{entry}: error {code} ({text})")
        self.entry, self.code = entry, code


class UniqueId(ctypes.Structure):
    """A communicator's id: 128 bytes, given by value."""

    _fields_ = [("internal", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """What version 2.17 knows of a communicator's settings."""

    _fields_ = [
        ("size", c_size_t),
        ("magic", c_uint),
        ("version", c_uint),
        ("blocking", c_int),
        ("cgaClusterSize", c_int),
        ("minCTAs", c_int),
        ("maxCTAs", c_int),
        ("netName", c_char_p),
    ]


#: Each returns its error, an int.
ENTRIES: Dict[str, List[Any]] = {
    "ncclGetVersion": [POINTER(c_int)],
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRankConfig": [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)],
    "ncclCommInitRank": [POINTER(c_void_p), c_int, UniqueId, c_int],
    "ncclReduceScatter": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclAllGather": [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p],
    "ncclAllReduce": [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclGroupStart": [],
    "ncclGroupEnd": [],
    "ncclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "ncclCommAbort": [c_void_p],
    "ncclCommFinalize": [c_void_p],
    "ncclCommDestroy": [c_void_p],
    "ncclCommCount": [c_void_p, POINTER(c_int)],
    "ncclCommUserRank": [c_void_p, POINTER(c_int)],
}


def environment(
    *,
    host: Optional[str] = None,
    version: int = 23007,
    patience: float = 100.0,
    launch: float = 0.0,
    eager: bool = False,
    notices: bool = True,
    ordered_threads: bool = False,
    refuse: Optional[Dict[str, int]] = None,
    folder: Optional[Path] = None,
) -> Dict[str, str]:
    """Return the variables with which a rank's DDL uses the fake NCCL, beside those of ``Fake.environment``.

    Two ranks of a host must not share a GPU: give each rank its own by ``Fake.environment(physical=...)`` and
    ``ranks.run(env_of=...)``, as ``jobs.each_its_gpu`` does. ``host``: the host's name, where ranks are to be on
    several. ``patience``: seconds until a wait for another rank is a violation, and ends. ``launch``: seconds for
    which a launch waits for one of another thread, at most, so that they meet. ``eager``: the first operation of a
    communicator that does not block is queued at once; otherwise it is in progress until it is polled. ``notices``: an
    abort is an asynchronous error on other ranks whose operations miss that rank; otherwise they learn nothing.
    ``ordered_threads``: launches of two threads on one device need an order that the ledger knows. ``refuse``: the
    error of each entry whose calls all fail. ``folder``: where ranks meet, if not in that of ``ranks.run``.
    """
    settings = {
        "VERSION": version,
        "PATIENCE_MS": int(1000 * patience),
        "LAUNCH_MS": int(1000 * launch),
        "EAGER": int(eager),
        "NOTICES": int(notices),
        "ORDERED_THREADS": int(ordered_threads),
    }
    variables = {f"FAKE_NCCL_{name}": str(setting) for name, setting in settings.items()}
    if refuse:
        variables["FAKE_NCCL_REFUSE"] = ",".join(f"{_entry(name)}={code}" for name, code in refuse.items())
    if folder is not None:
        variables["FAKE_NCCL_FOLDER"] = str(folder)
    if host is not None:
        variables["NCCL_HOSTID"] = host
    return {"DDL_CUDA_LIBRARY": str(driver_library()), "DDL_NCCL_LIBRARY": str(library()), **variables}


def _entry(name: str) -> str:
    if name not in ENTRIES and name != "asynchronous":
        raise ValueError(f"the fake NCCL has no {name}")
    return name


class Nccl:
    """The fake NCCL of this process. Its operations need ``DDL_CUDA_LIBRARY``, which ``Fake`` uses as well."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ.get("DDL_NCCL_LIBRARY") or str(library()))
        for name, arguments in ENTRIES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = c_int, arguments
        self.library.ncclGetLastError.restype = self.library.ncclGetErrorString.restype = c_char_p
        self.library.ncclGetLastError.argtypes, self.library.ncclGetErrorString.argtypes = [c_void_p], [c_int]
        self.library.fake_nccl_refuse.restype, self.library.fake_nccl_refuse.argtypes = None, [c_char_p, c_int, c_int]
        self.library.fake_nccl_calls.restype, self.library.fake_nccl_calls.argtypes = c_uint64, [c_char_p]
        self.library.fake_nccl_patience.restype, self.library.fake_nccl_patience.argtypes = None, [c_int]

    # --- calls of the library ---

    def code(self, entry: str, *arguments: Any) -> int:
        """Call an entry; return its error, or 0."""
        return int(getattr(self.library, entry)(*arguments))

    def check(self, entry: str, *arguments: Any) -> None:
        """Call an entry; raise ``NcclError`` if it fails. A call that is in progress has not failed."""
        code = self.code(entry, *arguments)
        if code not in (0, IN_PROGRESS):
            raise NcclError(entry, code, self.last_error())

    def last_error(self) -> str:
        """Return the text of this process's last error."""
        return str((self.library.ncclGetLastError(None) or b"").decode())

    def version(self) -> int:
        """Return the library's version."""
        return self._number("ncclGetVersion")

    def unique_id(self) -> bytes:
        """Return a new id, for the ranks of one communicator."""
        unique = UniqueId()
        self.check("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    @staticmethod
    def config(*, blocking: int = 1, size: int = 40, magic: int = 0xCAFEBEEF, version: int = 21700) -> Config:
        """Return the settings of a communicator."""
        return Config(size, magic, version, blocking, UNDEFINED, UNDEFINED, UNDEFINED, None)

    def init(self, unique: bytes, size: int, rank: int, config: Optional[Config] = None) -> int:
        """Return this rank's new communicator, on the device of the current context."""
        handle = c_void_p()
        settings = None if config is None else ctypes.byref(config)
        self.check(
            "ncclCommInitRankConfig", ctypes.byref(handle), size, UniqueId.from_buffer_copy(unique), rank, settings
        )
        return handle.value or 0

    def asynchronous_error(self, communicator: int) -> int:
        """Return what has befallen the communicator; 0: nothing, 7: the last call is in progress."""
        return self._number("ncclCommGetAsyncError", communicator)

    def settle(self, communicator: int, *, timeout: float = 150.0) -> int:
        """Poll until the last call is no longer in progress, and return its error."""
        deadline = time.monotonic() + timeout
        while (code := self.asynchronous_error(communicator)) == IN_PROGRESS:
            if time.monotonic() > deadline:
                raise TimeoutError("a call of the fake NCCL is in progress for good")
            time.sleep(0.0005)
        return code

    def reduce_scatter(
        self, communicator: int, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Queue a reduce-scatter; ``count``: of elements in each rank's result."""
        self.check("ncclReduceScatter", source, target, count, TYPES[dtype], OPS[op], communicator, stream)

    def all_gather(self, communicator: int, source: int, target: int, count: int, dtype: str, stream: int) -> None:
        """Queue an all-gather; ``count``: of elements that each rank brings."""
        self.check("ncclAllGather", source, target, count, TYPES[dtype], communicator, stream)

    def all_reduce(
        self, communicator: int, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        """Queue an all-reduce."""
        self.check("ncclAllReduce", source, target, count, TYPES[dtype], OPS[op], communicator, stream)

    def abort(self, communicator: int) -> None:
        """End the communicator and its operations; what they write is garbage."""
        self.check("ncclCommAbort", communicator)

    def destroy(self, communicator: int) -> None:
        """Wait for the communicator's operations, and end it."""
        self.check("ncclCommDestroy", communicator)

    # --- control ---

    def refuse(self, entry: str, code: int, count: int = 1) -> None:
        """Let the next ``count`` calls of an entry (-1: all) return this error and do nothing.

        Entry "asynchronous" is what ``ncclCommGetAsyncError`` tells.
        """
        self.library.fake_nccl_refuse(_entry(entry).encode(), code, count)

    def patience(self, seconds: float) -> None:
        """Let waits for other ranks that begin from now on end after so many seconds, as violations."""
        self.library.fake_nccl_patience(int(1000 * seconds))

    def calls(self, entry: str) -> int:
        """Return how often an entry was called, refused calls included."""
        return int(self.library.fake_nccl_calls(_entry(entry).encode()))

    def _number(self, entry: str, *arguments: Any) -> int:
        number = c_int(-1)
        self.check(entry, *arguments, ctypes.byref(number))
        return number.value
