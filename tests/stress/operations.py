"""The random operations of the stress test: what each of them is, what ranks put in, and what must come out.

All ranks draw the same sequence from one seed. What a rank contributes is a pattern over the places plus an offset that
depends on the number of the operation and on the rank, so that a block in the wrong place, a rank that counts twice and
a value left over from an earlier operation all show; sums of whole numbers that every type used here holds exactly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Dict, Iterator, List

import numpy as np

import ddl

#: Bytes of the largest buffer; the patterns are made once for it.
LARGEST = 4 << 20
#: How often each verb is drawn, relative to the others.
WEIGHTS: Dict[str, int] = {
    "allreduce_": 30,
    "prepared": 15,
    "allreduce": 12,
    "broadcast_": 8,
    "reduce": 6,
    "reducescatter": 5,
    "allgather": 5,
    "alltoall": 4,
    "gather": 4,
    "scatter": 4,
    "barrier": 4,
    "exchange": 3,  # send to the next rank, receive from the one before
}
#: Upper ends of the size classes in bytes, and how often each is drawn: small operations are where the turns follow
#: one another fastest.
SIZES: Dict[int, int] = {8: 30, 64: 30, 1024: 20, 4096: 8, 65536: 8, 524288: 3, LARGEST: 1}
OPS = (ddl.Sum, ddl.Average, ddl.Min, ddl.Max)
TYPES = ("float32", "float64", "int32", "int64")
_MODULUS = 1021  # of the offsets: a prime, so that operations near one another never have the same


@dataclass(frozen=True)
class Operation:
    """One operation, the same on every rank. ``count``: elements of ``dtype`` in the buffer that a rank brings."""

    number: int
    verb: str
    count: int
    dtype: str
    op: ddl.ReduceOp
    root: int
    shared: bool  # the buffer lies in shared memory
    background: bool  # submitted without waiting


def sequence(seed: int, operations: int, size: int) -> Iterator[Operation]:
    """The operations that ``size`` ranks agree on."""
    draw = random.Random(seed)
    verbs, verb_weights = list(WEIGHTS), list(WEIGHTS.values())
    limits, limit_weights = list(SIZES), list(SIZES.values())
    for number in range(operations):
        verb = draw.choices(verbs, verb_weights)[0]
        limit = draw.choices(limits, limit_weights)[0]
        # Few different lengths, so that buffers are used again, and one type of large ones, so that they do not add up.
        dtype = TYPES[draw.randrange(len(TYPES))] if limit <= 65536 else "float32"
        most = limit // np.dtype(dtype).itemsize
        count = max(1, most - draw.randrange(6) * max(1, most // 11))
        if verb == "alltoall":
            count = max(1, count // size) * size
        op = OPS[draw.randrange(len(OPS))]
        if op == ddl.Average and dtype.startswith("int"):
            op = ddl.Sum  # its division would truncate; that is tested elsewhere
        yield Operation(number, verb, count, dtype, op, draw.randrange(size), draw.random() < 0.6, draw.random() < 0.4)


class Values:
    """What ranks bring and what comes out. The number of ranks is a power of two, so that averages are exact."""

    def __init__(self, size: int) -> None:
        self.size = size
        whole = np.arange(LARGEST // 4) % 97
        self._pattern = {dtype: whole[: LARGEST // np.dtype(dtype).itemsize].astype(dtype) for dtype in TYPES}
        self._times_size = {dtype: pattern * size for dtype, pattern in self._pattern.items()}

    @staticmethod
    def offset(number: int, rank: int) -> int:
        return (number * 5 + rank * 11) % _MODULUS

    def fill(self, array: np.ndarray, operation: Operation, rank: int) -> None:
        """Write what ``rank`` brings to ``operation`` into ``array``."""
        pattern = self._pattern[operation.dtype][: array.size]
        np.add(pattern, array.dtype.type(self.offset(operation.number, rank)), out=array)

    def brought(self, operation: Operation, rank: int, first: int = 0, last: int = LARGEST) -> np.ndarray:
        """Elements ``[first, last)`` of what ``rank`` brings."""
        pattern = self._pattern[operation.dtype][first : min(last, operation.count)]
        return pattern + pattern.dtype.type(self.offset(operation.number, rank))

    def reduced(self, operation: Operation, first: int = 0, last: int = LARGEST) -> np.ndarray:
        """Elements ``[first, last)`` of what all ranks bring, combined by the operation's op."""
        offsets = [self.offset(operation.number, rank) for rank in range(self.size)]
        last = min(last, operation.count)
        if operation.op == ddl.Sum:
            pattern, offset = self._times_size[operation.dtype][first:last], float(sum(offsets))
        else:
            pattern = self._pattern[operation.dtype][first:last]
            offset = {
                ddl.Min: float(min(offsets)),
                ddl.Max: float(max(offsets)),
                ddl.Average: sum(offsets) / self.size,
            }[operation.op]
        return pattern + pattern.dtype.type(offset)

    def expected(self, operation: Operation, rank: int) -> np.ndarray:
        """What ``rank`` must hold afterwards; an empty array where it gets nothing."""
        verb, count, root = operation.verb, operation.count, operation.root
        if verb in ("allreduce_", "prepared", "allreduce") or (verb == "reduce" and rank == root):
            return self.reduced(operation)
        if verb == "broadcast_":
            return self.brought(operation, root)
        if verb in ("reducescatter", "scatter"):
            first = sum(shares(count, self.size)[:rank])
            last = first + shares(count, self.size)[rank]
            return (
                self.reduced(operation, first, last)
                if verb == "reducescatter"
                else self.brought(operation, root, first, last)
            )
        if verb == "allgather" or (verb == "gather" and rank == root):
            return np.concatenate([self.brought(operation, r) for r in range(self.size)])
        if verb == "alltoall":
            each = count // self.size
            return np.concatenate(
                [self.brought(operation, r, rank * each, (rank + 1) * each) for r in range(self.size)]
            )
        if verb == "exchange":
            return self.brought(operation, (rank - 1) % self.size)
        return np.empty(0, operation.dtype)


def shares(rows: int, size: int) -> List[int]:
    """How ``rows`` are dealt: the first ranks get one more where it does not divide."""
    return [rows // size + (rank < rows % size) for rank in range(size)]
