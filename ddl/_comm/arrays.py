"""What callers pass as arrays, and new arrays like these for results.

The core looks at an array itself, once (csrc/python/memory.h). A verb that returns a new array must know more of it:
its shape and type, and what makes another like it.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence, TypeVar, Union

import numpy as np

from ddl._comm.gpu_arrays import GpuArray, UnimportedArray, is_on_gpu
from ddl.errors import InvalidArgument

__all__ = ["Array", "as_array", "for_caller", "new_like", "not_none", "readable"]

T = TypeVar("T")
#: What a verb that returns a new array reads and writes.
Array = Union[np.ndarray, GpuArray]
_VALUES = (list, tuple, bool, int, float, complex, np.generic)  #: numpy makes an array of these
_ADVICE = "pass a numpy array or anything with DLPack"


def as_array(x: Any) -> Any:
    """Return ``x`` as an ``Array``: a contiguous numpy array, without a copy where it can be; or what is on a GPU.

    ``x``: an array, anything with DLPack, a number, or a list of numbers (of lists, ...), of the type that numpy gives
    it. Raises ``InvalidArgument`` for anything else.
    """
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)
    if isinstance(x, GpuArray):
        return x
    if isinstance(x, _VALUES):
        try:
            return np.asarray(x)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidArgument(f"a {type(x).__name__} that numpy cannot make an array of: {error}") from None
    if is_on_gpu(x):
        return GpuArray(x)
    if hasattr(x, "__dlpack__"):
        try:
            return np.ascontiguousarray(np.from_dlpack(x))
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidArgument(
                f"a {type(x).__name__} cannot become a numpy array ({error}); use an in-place verb, or convert it"
            ) from None
    raise InvalidArgument(f"a {type(x).__name__} is no array; {_ADVICE}")


def new_like(array: Array, shape: Optional[Sequence[int]] = None) -> Any:
    """Return a new ``Array`` of the same type and in the same place as ``array``; ``shape``: None: the same."""
    wanted = array.shape if shape is None else tuple(shape)
    return array.new(wanted) if isinstance(array, GpuArray) else np.empty(wanted, dtype=array.dtype)


def for_caller(array: Any) -> Any:
    """Return what the caller gets for an ``Array`` or None: see also ``gpu_arrays.imported``."""
    if isinstance(array, UnimportedArray):
        return array
    return array.owner if isinstance(array, GpuArray) else array


def not_none(verb: str, x: T) -> T:
    """Return ``x``. To the core, None means that this rank has no such buffer; a caller may not pass it."""
    if x is None:
        raise InvalidArgument(f"{verb}: a NoneType is no array; {_ADVICE}") from None
    return x


def readable(verb: str, x: Any) -> Any:
    """Return what the core gets for an array that is only read."""
    return as_array(x) if isinstance(x, (np.ndarray, *_VALUES)) else not_none(verb, x)
