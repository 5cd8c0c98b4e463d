"""Arrays that live in memory shared by the ranks of a host (what IBM's DDL called ``ddl_malloc``).

A collective on such arrays moves every byte as few times as possible: the ranks of the host read and write one
another's arrays directly. The memory is a sparse, nameless file of this process (``memfd``), so nothing can leak and no
limit on ``/dev/shm`` applies; it is given back when the last view of the array is gone.
"""

from __future__ import annotations

import operator
from typing import Any, Sequence, Union

import numpy as np

from ddl import _core
from ddl.errors import InvalidArgument

__all__ = ["Pieces", "copy_past_caches", "empty", "is_shared"]

# Memory on GPUs, for DDL's own modules.
GpuBlock = _core.GpuBlock
GpuMemory = _core.GpuMemory
Pieces = _core.Pieces  #: some arrays of a list, copied behind one another and back

_MOST_BYTES = 2**62


def empty(shape: Union[int, Sequence[int]], dtype: Any = np.float32) -> np.ndarray:
    """Return a new array in shared memory; its contents are undefined.

    Not collective, does not block; works before ``init`` and without a launcher. ``shape`` is an int or a sequence of
    ints, ``dtype`` anything numpy takes. Alignment: a cache line, a page from 1 MiB up. Raises ``InvalidArgument`` for
    a bad shape or type, ``ResourceError`` when the arena (DDL_SHM_SIZE) is full.

    >>> x = ddl.empty((1024, 1024), "float32")
    """
    try:
        kind = np.dtype(dtype)
        extents = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(operator.index(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"empty(shape={shape!r}, dtype={dtype!r}): {error}") from None
    if kind.hasobject or any(n < 0 for n in extents):
        raise InvalidArgument(f"empty(shape={shape!r}, dtype={dtype!r}): needs sizes >= 0 and a type without objects")
    count = 1
    for n in extents:
        count *= n
    if count * kind.itemsize > _MOST_BYTES:
        raise InvalidArgument(f"empty(shape={shape!r}, dtype={dtype!r}): no machine has {count * kind.itemsize} bytes")
    block = _core.SharedBlock(max(1, count * kind.itemsize))
    flat: np.ndarray = np.frombuffer(memoryview(block), dtype=kind, count=count)
    return flat.reshape(extents)


def is_shared(array: np.ndarray) -> bool:
    """Return whether all of ``array`` lies in this process's shared memory."""
    try:
        _core.arena_offset(array)
    except InvalidArgument:
        return False
    return True


def copy_past_caches(target: np.ndarray, source: np.ndarray) -> None:
    """Copy ``source`` to ``target`` without filling the caches: for what is read much later, if at all.

    Both are contiguous on the CPU, of one type, and have the same number of elements. A third faster than a usual copy.
    """
    _core.copy_bytes(target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8), True)
