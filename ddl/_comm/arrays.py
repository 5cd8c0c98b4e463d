"""What callers pass as arrays, and the memory of it that the core gets.

The core knows no complex numbers. It gets their memory as real numbers, two for each: moving them is the same, and so
are sums and averages.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, TypeVar, Union

import numpy as np

from ddl._comm.gpu_arrays import GpuArray, UnimportedArray, is_on_gpu
from ddl.errors import InvalidArgument
from ddl.reduce_op import Average, ReduceOp, Sum

__all__ = ["Array", "as_array", "as_real", "check_complex", "complex_as_real", "for_caller", "is_complex", "memory"]
__all__ += ["new_like", "not_none", "readable"]

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
    """Return a new ``Array`` of the type of ``array``, where that is; ``shape``: None: the same."""
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


def memory(verb: str, x: Any, op: ReduceOp = Sum) -> Any:
    """Return what the core gets for an array that a verb reads or writes where it is. ``op``: how it is combined."""
    if isinstance(x, np.ndarray):
        if x.dtype.kind != "c":
            return x
        check_complex(verb, op)
        return as_real(verb, x)
    if isinstance(x, _VALUES):
        raise InvalidArgument(
            f"{verb}: a {type(x).__name__} cannot be used in place; {_ADVICE}, or use a verb that returns a new array"
        ) from None
    if isinstance(x, GpuArray):
        return x.memory()
    if is_on_gpu(x):
        array = GpuArray(x)
        if array.dtype.kind == "c":
            check_complex(verb, op)
            return array.memory()
    return not_none(verb, x)


def complex_as_real(error: InvalidArgument, verb: str, *arrays: Any, op: ReduceOp = Sum) -> List[Any]:
    """Return the memory of ``arrays`` that the core has refused with ``error``: complex numbers, for a second call.

    Raises ``error``, or a clearer one, for anything else. Calls that count every nanosecond do not ask before.
    """
    views = [memory(verb, x, op) for x in arrays]
    if all(view is x for view, x in zip(views, arrays)):
        raise error.with_traceback(None)
    return views


def readable(verb: str, x: Any) -> Any:
    """Return what the core gets for an array that is only read."""
    return as_array(x) if isinstance(x, (np.ndarray, *_VALUES)) else not_none(verb, x)


def is_complex(x: Any) -> bool:
    """Return whether ``x`` is an ``Array`` of complex numbers."""
    return isinstance(x, (np.ndarray, GpuArray)) and x.dtype.kind == "c"


def as_real(verb: str, array: Array) -> Any:
    """Return the memory of an array of complex numbers as real ones, two for each; it must be contiguous."""
    if isinstance(array, GpuArray):
        return array.memory()
    if not array.flags.c_contiguous:
        raise InvalidArgument(
            f"{verb}: the array of shape {array.shape} and strides {array.strides} is not contiguous; pass "
            "numpy.ascontiguousarray(x), or use a verb that returns a new array"
        ) from None
    return array.reshape(-1).view(array.real.dtype)


def check_complex(verb: str, op: ReduceOp) -> None:
    """Raise ``InvalidArgument`` unless complex numbers can be combined by ``op``: as pairs of real ones."""
    if op not in (Sum, Average):
        text = f"{verb}: complex numbers can be averaged and summed; op={op!r} is not defined for them"
        raise InvalidArgument(text) from None
