"""The float32 arrays of calls that are timed: in memory that the ranks of a host share, or on a GPU."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ddl.errors import ResourceError
from ddl.memory import GpuBlock, GpuMemory, empty

__all__ = ["ON_HOST", "TimedArray", "timed_array"]

ON_HOST = -1  #: instead of the number of a GPU
_ITEM = 4


class TimedArray(Protocol):
    """An array of float32."""

    def passed(self) -> Any:
        """Return what a call gets."""

    def write(self, values: np.ndarray) -> None:
        """Overwrite it."""

    def read(self) -> np.ndarray:
        """Return a copy of its contents."""


def timed_array(count: int, device: int) -> TimedArray:
    """Return a new array of ``count`` elements on that GPU, or ``ON_HOST``."""
    return _HostArray(count) if device == ON_HOST else _ArrayOnGpu(count, device)


class _HostArray:
    def __init__(self, count: int) -> None:
        try:
            self._array = empty(count, np.float32)
        except ResourceError:  # DDL_SHM_SIZE is too small for it; private memory can be used, too
            self._array = np.empty(count, np.float32)

    def passed(self) -> np.ndarray:
        return self._array

    def write(self, values: np.ndarray) -> None:
        self._array[:] = values

    def read(self) -> np.ndarray:
        values: np.ndarray = self._array.copy()
        return values


class _ArrayOnGpu:
    def __init__(self, count: int, device: int) -> None:
        self._block = GpuBlock(device, count * _ITEM)
        self._count = count

    def passed(self) -> GpuMemory:
        return GpuMemory(self._block.address, self._count, "float32", 0, self._block)

    def write(self, values: np.ndarray) -> None:
        self._block.write(np.ascontiguousarray(values, np.float32))

    def read(self) -> np.ndarray:
        values = np.empty(self._count, np.float32)
        self._block.read(values)
        return values
