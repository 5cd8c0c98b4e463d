"""Agreeing on sizes: what ranks tell one another before a collective whose arrays differ by rank.

Every rank gives one row of int64: its element type, its shape, and what else the collective needs (splits). An
all-gather brings all rows to all ranks, so all see the same and refuse the same, before any array has moved.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from ddl.errors import InvalidArgument, ProtocolError

__all__ = ["HEAD", "MAX_DIMENSIONS", "check_rows", "decode_type", "ranks_differ", "row", "shape_of", "split_evenly"]

MAX_DIMENSIONS = 30
HEAD = 2 + MAX_DIMENSIONS  #: int64 values before a collective's own

#: Their places are what ranks exchange; append only.
_TYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
)


def ranks_differ(text: str) -> InvalidArgument:
    """Return the error for values that do not match, found when ranks had exchanged them: it harms nothing."""
    error = InvalidArgument(text)
    error.on_all_ranks = True
    return error


def row(array: np.ndarray, more: Sequence[int] = ()) -> np.ndarray:
    """Return one rank's row for ``array``: type, number of dimensions, shape, then ``more``."""
    if array.dtype.name not in _TYPES:
        raise InvalidArgument(f"arrays of type {array.dtype} cannot be communicated; use one of {', '.join(_TYPES)}")
    if array.ndim > MAX_DIMENSIONS:
        raise InvalidArgument(f"an array of {array.ndim} dimensions is too much; {MAX_DIMENSIONS} are supported")
    padding = [0] * (MAX_DIMENSIONS - array.ndim)
    return np.array([_TYPES.index(array.dtype.name), array.ndim, *array.shape, *padding, *more], dtype=np.int64)


def shape_of(row: np.ndarray) -> Tuple[int, ...]:
    """Return the shape that a row tells of."""
    return tuple(int(n) for n in row[2 : 2 + int(row[1])])


def decode_type(row: np.ndarray) -> str:
    """Return the element type that a row tells of."""
    return _TYPES[int(row[0])]


def check_rows(verb: str, rows: np.ndarray) -> None:
    """Raise ``InvalidArgument``, on all ranks alike, unless types and all but the first dimension agree."""

    def kind(row: np.ndarray) -> Tuple[str, Tuple[int, ...]]:
        return decode_type(row), shape_of(row)[1:]

    if int(rows.min()) < 0 or int(rows[:, 0].max()) >= len(_TYPES) or int(rows[:, 1].max()) > MAX_DIMENSIONS:
        raise ProtocolError(f"{verb}: a rank told of an array that cannot be: {rows[:, :2].tolist()!r:.200}")
    for rank, row in enumerate(rows):
        if int(row[1]) == 0:
            raise ranks_differ(f"{verb}: rank {rank} passed an array without dimensions; reshape it to (1,)")
        if kind(row) != kind(rows[0]):
            raise ranks_differ(
                f"{verb}: rank 0 has {decode_type(rows[0])} of shape {shape_of(rows[0])} but rank {rank} has "
                f"{decode_type(row)} of shape {shape_of(row)}; only the first dimension may differ between ranks"
            )


def split_evenly(count: int, parts: int) -> List[int]:
    """Return how ``count`` rows are dealt to ``parts`` ranks: the first ranks get one more where it does not divide."""
    each, rest = divmod(count, parts)
    return [each + (part < rest) for part in range(parts)]
