"""``Operation``s on numpy arrays, which are the memory of TensorFlow's tensors: made when TensorFlow runs the op.

What one rank alone can refuse is refused when the operation is built, before anything is submitted.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Sequence, Tuple

import ml_dtypes
import numpy as np

import ddl
from ddl.adapter import operations
from ddl.adapter.adasum import adasum_
from ddl.adapter.calls import Call, Collective, calls_of, check_splits
from ddl.adapter.operations import ANY, Operation, Signature, Waitable, at_once, barrier
from ddl.adapter.operator_checks import check_type

__all__ = [
    "absent",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "numbers",
    "reducescatter",
    "type_name",
]

Array = np.ndarray[Any, Any]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@functools.cache
def type_name(dtype: np.dtype[Any]) -> str:
    """Return what ranks call a type; what numpy does to find it takes 3 us."""
    return str(dtype)


def _described(array: Array, rows_differ: bool = False) -> Tuple[str, Tuple[int, ...]]:
    return type_name(array.dtype), (ANY, *array.shape[1:]) if rows_differ else array.shape


def _scale(array: Array, factor: float) -> None:
    """Multiply in place; integers as float64, truncated; types of 16 bits as float32, as the factor is none of them."""
    if factor == 1.0:
        return
    wide = np.float64 if array.dtype.kind in "iub" else np.float32 if array.dtype.itemsize == 2 else None
    np.multiply(array, float(factor), out=array, dtype=wide, casting="unsafe")


def numbers(array: Array) -> Array:
    """Return the memory as the core adds it up: a complex number is two numbers, each for itself."""
    flat = array.reshape(-1)
    return flat.view(flat.real.dtype) if array.dtype.kind == "c" else flat


def _moved(array: Array) -> Array:
    """Return the memory for a verb that only moves it: under types that the core knows."""
    whole = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.kind == "c":
        return whole.view(array.real.dtype).reshape(*array.shape, 2)
    return whole.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else whole


def _back(rows: Array, dtype: np.dtype[Any]) -> Array:
    """Undo ``_moved``."""
    return rows.view(dtype).reshape(rows.shape[:-1]) if dtype.kind == "c" else rows.view(dtype)


def _reduction(verb: str, array: Array, op: ddl.ReduceOp, prescale: float, postscale: float) -> Signature:
    """Return what ranks agree on. Raises ``InvalidArgument`` if that cannot be."""
    return _checked(verb, array.dtype, array.shape, op, float(prescale), float(postscale))


@functools.lru_cache(maxsize=4096)  # to make one takes longer than to find it again
def _checked(
    verb: str, dtype: np.dtype[Any], shape: Tuple[int, ...], op: ddl.ReduceOp, prescale: float, postscale: float
) -> Signature:
    short = dtype == _BFLOAT16  # no kind of numpy's, and numpy computes no Adasum of it
    check_type(verb, dtype, "f" if short else dtype.kind, op, adasum="" if short else "f")
    scales = "" if prescale == postscale == 1.0 else f" prescale_factor={prescale:g} postscale_factor={postscale:g}"
    return Signature(verb, ((type_name(dtype), shape),), f"op={op.name}{scales}")


def allreduce(target: Array, op: ddl.ReduceOp, prescale: float = 1.0, postscale: float = 1.0) -> Operation[None]:
    """All-reduce ``target``, contiguous and writable, in place."""
    signature = _reduction("allreduce", target, op, prescale, postscale)
    memory = numbers(target)

    def scaled() -> Array:
        _scale(target, prescale)
        return memory

    if op == ddl.Adasum:
        return at_once(
            signature, lambda communicator: adasum_(communicator, scaled()), lambda _: _scale(target, postscale)
        )
    return Operation(
        signature,
        lambda communicator: communicator.allreduce_async_(scaled(), op=op),
        lambda _: _scale(target, postscale),
        lambda communicator: communicator.allreduce_(scaled(), op=op),
        attempt=lambda communicator: calls_of(communicator).attempt(
            Call(Collective.ALLREDUCE, scaled(), memory, None, op=op)
        ),
    )


def broadcast(target: Array, root: int, name: str) -> Operation[None]:
    """Broadcast from rank ``root`` of the communicator, which people call ``name``, in place."""
    memory = _moved(target)
    return Operation(
        Signature("broadcast", (_described(target),), f"root_rank={name}"),
        lambda communicator: communicator.broadcast_async_(memory, root=root),
        lambda _: None,
        lambda communicator: communicator.broadcast_(memory, root=root),
        attempt=lambda communicator: calls_of(communicator).attempt(
            Call(Collective.BROADCAST, memory if communicator.rank == root else None, memory, None, root=root)
        ),
    )


def reducescatter(array: Array, op: ddl.ReduceOp, prescale: float = 1.0, postscale: float = 1.0) -> Operation[Array]:
    """Reduce-scatter the rows; bfloat16 is added up as float32 and rounded once, at the end."""
    signature = _reduction("reducescatter", array, op, prescale, postscale)
    if array.ndim == 0:
        raise ddl.InvalidArgument("reducescatter: a tensor without dimensions has no rows to scatter")
    own = array.astype(np.float32) if array.dtype == _BFLOAT16 else array
    if array.dtype.kind == "c":
        own = np.ascontiguousarray(array).view(array.real.dtype).reshape(*array.shape, 2)
    if prescale != 1.0:
        own = own.copy()
        _scale(own, prescale)

    def finish(rows: Array) -> Array:
        _scale(rows, postscale)
        if array.dtype.kind == "c":
            return rows.view(array.dtype).reshape(rows.shape[:-1])
        return rows.astype(array.dtype, copy=False)

    return Operation(
        signature,
        lambda communicator: communicator.reducescatter_async(own, op=op),
        finish,
        lambda communicator: communicator.reducescatter(own, op=op),
    )


def allgather(array: Array, detail: str = "") -> Operation[Array]:
    """All-gather along the first dimension, which may differ by rank. ``detail``: what else ranks have alike."""
    moved, dtype = _moved(array), array.dtype
    return Operation(
        Signature("allgather", (_described(array, rows_differ=True),), detail),
        lambda communicator: communicator.allgather_async(moved),
        lambda rows: _back(rows, dtype),
        lambda communicator: communicator.allgather(moved),
    )


def alltoall(array: Array, splits: Optional[Sequence[int]], size: int) -> Operation[Tuple[Array, Array]]:
    """Send ``splits[r]`` rows (None: an equal share) to each of ``size`` ranks r; return rows and received splits.

    Ranks may have different equal shares, so the splits are always given: then the received ones come with the rows.
    """
    moved, dtype = _moved(array), array.dtype
    given = check_splits(moved, splits, size)

    def finish(result: Tuple[Array, Array]) -> Tuple[Array, Array]:
        rows, counts = result
        return _back(rows, dtype), np.asarray(counts, np.int32)

    return Operation(
        Signature("alltoall", (_described(array, rows_differ=True),)),
        lambda communicator: communicator.alltoall_async(moved, given),
        finish,
        lambda communicator: communicator.alltoall(moved, given),
    )


def absent(signature: Signature) -> Callable[[ddl.Communicator], Waitable]:
    """Return what a rank that has joined does in place of the operation: see ``ddl.adapter.operations.absent``."""
    return operations.absent(signature, lambda name, shape, op: allreduce(np.zeros(shape, _dtype(name)), op))


def _dtype(name: str) -> np.dtype[Any]:
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name)
