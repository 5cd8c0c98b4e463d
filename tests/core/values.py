"""What ranks contribute in the tests, and what must come out: whole numbers that every type holds exactly.

A contribution depends on the rank, the place and a salt, so that a block that lands in the wrong place, a rank that
counts twice and a result of the call before all show. Sums of up to 8 ranks stay below 256, where bfloat16 begins to
round; integers are pushed to the end of their range where wrapping is defined.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Tuple

import numpy as np

import ddl

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]
PERIOD = 31
OPS = [ddl.Sum, ddl.Average, ddl.Min, ddl.Max, ddl.Product]

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
#: Where the type code lies in a DLTensor (after data, device, number of dimensions), and the code of bfloat16.
_TYPE_CODE_AT, _BFLOAT = 20, 4


class Bfloat16:
    """An array of bfloat16, which numpy has not: it shows the bits ``data`` (uint16) through DLPack."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack_device__(self) -> Tuple[int, int]:
        device: Tuple[int, int] = self.data.__dlpack_device__()
        return device

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.data.__dlpack__()
        tensor = _get_pointer(capsule, b"dltensor")
        assert tensor is not None
        ctypes.c_uint8.from_address(tensor + _TYPE_CODE_AT).value = _BFLOAT
        return capsule


def storage(dtype: str) -> np.dtype:
    """The numpy type that holds the bytes of ``dtype``."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)


def for_ddl(dtype: str, data: np.ndarray) -> Any:
    """What is passed to DDL for ``data``."""
    return Bfloat16(data) if dtype == "bfloat16" else data


def allowed(dtype: str, op: ddl.ReduceOp) -> bool:
    """Everything but the average of bool."""
    return not (dtype == "bool" and op == ddl.Average)


def _to_storage(dtype: str, values: np.ndarray) -> np.ndarray:
    if dtype == "bfloat16":
        bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return bits
    return values.astype(dtype)


@functools.lru_cache(maxsize=8)
def _kinds(count: int) -> np.ndarray:
    """Which of PERIOD kinds each place is of; every value follows from it, so that it is worked out once for each."""
    place = np.arange(count, dtype=np.int64)
    return (place * 7 + place // 64 * 5) % PERIOD


def _whole_numbers(dtype: str, op: ddl.ReduceOp, rank: int, size: int, salt: int) -> np.ndarray:
    """What ``rank`` brings in places of each kind."""
    pattern = (np.arange(PERIOD) + rank * 13 + salt) % PERIOD
    signed = dtype in FLOATS or dtype.startswith("int")
    if dtype == "bool":
        return (pattern + rank) % 3 == 0
    if op == ddl.Product:
        return (1 + pattern % 2) * np.where(signed & (pattern % 5 == 0), -1, 1)
    if op == ddl.Average:  # floats: the sum must divide; integers show that it is truncated towards zero
        return pattern % 4 * size if dtype in FLOATS else pattern % 15 - (7 if signed else 0)
    if dtype in FLOATS:
        return pattern - 15
    top = np.iinfo(dtype).max
    return np.where(pattern % 2 == 0, pattern, np.array(top - 31, dtype=dtype) + pattern.astype(dtype))


def contribution(dtype: str, op: ddl.ReduceOp, rank: int, size: int, count: int, salt: int = 0) -> np.ndarray:
    """What ``rank`` of ``size`` brings."""
    return _to_storage(dtype, _whole_numbers(dtype, op, rank, size, salt))[_kinds(count)]


def expected(dtype: str, op: ddl.ReduceOp, size: int, count: int, salt: int = 0) -> np.ndarray:
    """The one right result."""
    parts = [_whole_numbers(dtype, op, rank, size, salt) for rank in range(size)]
    if dtype in FLOATS or op == ddl.Average:
        parts = [part.astype(np.float64) for part in parts]
    elif dtype != "bool":
        parts = [part.astype(dtype) for part in parts]
    total = parts[0]
    for part in parts[1:]:
        if dtype == "bool":
            total = (total | part) if op in (ddl.Sum, ddl.Max) else (total & part)
        elif op in (ddl.Sum, ddl.Average):
            total = total + part
        elif op == ddl.Product:
            total = total * part
        else:
            total = np.minimum(total, part) if op == ddl.Min else np.maximum(total, part)
    return _to_storage(dtype, np.trunc(total / size) if op == ddl.Average else total)[_kinds(count)]


def numbers(rank: int, count: int, salt: int = 0) -> np.ndarray:
    """``count`` int32 that say from which rank and place they are."""
    return np.arange(count, dtype=np.int32) + np.int32(rank * 100_000_000 + salt * 1000)


def placed(data: np.ndarray, shared: bool) -> np.ndarray:
    """A copy of ``data``, in shared or in private memory."""
    copy = ddl.empty(data.shape, data.dtype) if shared else np.empty_like(data)
    copy[...] = data
    return copy


def check_equal(got: Any, want: np.ndarray, what: str) -> None:
    """Same type, shape and values; an AssertionError that shows where they differ if not."""
    got = got.data if isinstance(got, Bfloat16) else got
    assert isinstance(got, np.ndarray), f"{what}: got a {type(got).__name__}"
    assert got.dtype == want.dtype, f"{what}: got {got.dtype} instead of {want.dtype}"
    assert got.shape == want.shape, f"{what}: got shape {got.shape} instead of {want.shape}"
    if not np.array_equal(got, want):
        wrong = np.flatnonzero(got.ravel() != want.ravel())
        first = wrong[:5]
        raise AssertionError(
            f"{what}: {wrong.size} of {want.size} elements are wrong, the first at {first.tolist()}: "
            f"{got.ravel()[first].tolist()} instead of {want.ravel()[first].tolist()}"
        )
