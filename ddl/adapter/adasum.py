"""Adasum, which adds gradients where they are orthogonal and averages them where they are parallel.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv 2006.02924. Two vectors are combined to ::

    (1 - a·b / (2 a·a)) a  +  (1 - a·b / (2 b·b)) b

Those of the ranks are combined along a binary tree: 0 with 1, 2 with 3, …, then the results with one another. If their
number is odd, the last one goes up as it is. So any number of ranks works.

An all-to-all gives rank r part r of every rank's vector. Each rank then computes the whole tree by itself, on its part.
Only the dot products of a level are summed over the ranks, in one small all-reduce. An all-gather of the parts ends it.
So a rank sends as much as in a ring all-reduce. One rank computes each element, with factors that all ranks have alike:
all get the same bits, on any processors.
"""

from __future__ import annotations

from typing import Iterator, List, Sequence, Tuple

import numpy as np

from ddl.communicator import Communicator
from ddl.errors import InvalidArgument
from ddl.memory import empty
from ddl.reduce_op import Sum

__all__ = ["PreparedAdasum", "adasum_"]

_BLOCK = 8192  # elements that are widened to float64 at a time, so that they stay in the cache


def adasum_(communicator: Communicator, array: np.ndarray, *, starts: Sequence[int] = (0,)) -> np.ndarray:
    """Overwrite ``array`` with the Adasum of all ranks' arrays, the same bits on every rank; return it.

    Collective, blocking. ``array``: float16, float32 or float64, contiguous and writable, with the same shape and type
    on every rank. Dot products are computed in float64, float16 is rounded once, at the end. ``starts``: the elements,
    ascending from 0, where a new tensor begins, alike on every rank; each is combined by itself. If they differ, the
    result is no Adasum, though the same on every rank, or, with another number of tensors, the communicator breaks
    (``CollectiveMismatch``). Raises ``InvalidArgument`` before anything is sent.

    >>> adasum_(ddl.world(), gradient)
    """
    return PreparedAdasum(communicator, array, starts=starts)()


class PreparedAdasum:
    """``adasum_`` of one array, to be called again and again: it keeps its buffers, of up to twice the array's size."""

    def __init__(self, communicator: Communicator, array: np.ndarray, *, starts: Sequence[int] = (0,)) -> None:
        """Not collective. Arguments and errors are those of ``adasum_``."""
        if array.dtype.type not in (np.float16, np.float32, np.float64):
            raise InvalidArgument(f"adasum_: the array is {array.dtype}; it must be float16, float32 or float64")
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise InvalidArgument(f"adasum_: the array of shape {array.shape} must be contiguous and writable")
        if not starts or list(starts) != sorted(starts) or starts[0] != 0 or starts[-1] > array.size:
            raise InvalidArgument(f"adasum_: starts={starts} must ascend from 0 to at most the {array.size} elements")
        self._communicator, self._array, self._flat = communicator, array, array.reshape(-1)
        size = communicator.size
        share = -(-array.size // size)
        edges = np.clip(np.array([*starts, size * share]) - communicator.rank * share, 0, share).tolist()
        self._tensors = list(zip(edges, edges[1:]))  # from where to where each lies in this rank's part
        if size > 1:
            # Parts are equal: where they cannot be, the array is sent with zeros behind it.
            self._whole = self._flat if array.size == size * share else empty(size * share, array.dtype)
            self._rows = empty((size, share), array.dtype)

    def __call__(self) -> np.ndarray:
        """Do what ``adasum_`` does. Collective, blocking."""
        flat = self._flat
        if self._communicator.size == 1 or flat.size == 0:
            return self._array
        if self._whole is not flat:
            self._whole[: flat.size], self._whole[flat.size :] = flat, 0
        self._communicator.alltoall(self._whole, out=self._rows)
        wide = self._rows.astype(np.promote_types(flat.dtype, np.float32), copy=False)
        with np.errstate(all="ignore"):  # what is not finite is there to see in the result
            part = _climb(self._communicator, list(wide), self._tensors).astype(flat.dtype, copy=False)
        self._communicator.allgather(part, out=self._whole)
        if self._whole is not flat:
            flat[:] = self._whole[: flat.size]
        return self._array


def _climb(communicator: Communicator, rows: List[np.ndarray], tensors: Sequence[Tuple[int, int]]) -> np.ndarray:
    """Return the Adasum of ``rows``, which are overwritten; ``tensors``: from where to where each lies in a row."""
    while len(rows) > 1:
        pairs = list(zip(rows[::2], rows[1::2]))
        dots = np.array([[_dots(a[i:j], b[i:j]) for i, j in tensors] for a, b in pairs])
        communicator.allreduce_(dots, op=Sum)
        for (a, b), of_tensors in zip(pairs, dots.tolist()):
            for (i, j), (aa, ab, bb) in zip(tensors, of_tensors):
                _combine(a[i:j], b[i:j], _factor(ab, aa), _factor(ab, bb))
        rows = rows[::2]
    return rows[0]


def _factor(product: float, square: float) -> float:
    """Return how much of a vector is taken: 1 if it is orthogonal to the other, or zero; half if they are equal."""
    return 1.0 - product / (2.0 * square) if square else 1.0


def _dots(a: np.ndarray, b: np.ndarray) -> Tuple[float, float, float]:
    """Return a·a, a·b and b·b."""
    aa = ab = bb = 0.0
    for x, y in _blocks(a, b):
        aa, ab, bb = aa + float(x @ x), ab + float(x @ y), bb + float(y @ y)
    return aa, ab, bb


def _combine(a: np.ndarray, b: np.ndarray, of_a: float, of_b: float) -> None:
    """Overwrite ``a`` with of_a · a + of_b · b."""
    for number, (x, y) in enumerate(_blocks(a, b)):
        a[number * _BLOCK :][:_BLOCK] = of_a * x + of_b * y


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    for i in range(0, a.size, _BLOCK):
        yield a[i : i + _BLOCK].astype(np.float64), b[i : i + _BLOCK].astype(np.float64)
