"""The inputs of a collective, and the results that they must give.

Element i of rank r is (i + 3 r + salt) mod p. The prime p is so small that the sum over all ranks is at most 256, which
every element type holds exactly, bfloat16 too. As p is prime, elements that moved by a power of two show. Arrays hold
the bits of a type: float32 itself; uint16 for bfloat16, which numpy does not have, and for float16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence

import numpy as np

from ddl.tools.bench.names import COLLECTIVES, DTYPES

__all__ = [
    "COLLECTIVES",
    "CollectiveCall",
    "DTYPES",
    "LATENCY_BYTES",
    "bits_of",
    "contribution",
    "expected",
    "fitting",
    "period",
]

LATENCY_BYTES = 64 << 10  #: up to here calls are timed back to back; above, each after a barrier
_LARGEST_SUM = 256


@dataclass(frozen=True)
class CollectiveCall:
    """One collective on buffers of ``count`` elements; ``count`` divides by ``size``, the number of ranks."""

    collective: str
    dtype: str
    count: int
    size: int

    @property
    def nbytes(self) -> int:
        return self.count * DTYPES[self.dtype]

    @property
    def input_count(self) -> int:
        """How many elements a rank puts in."""
        return self.count // self.size if self.collective == "allgather" else self.count

    @property
    def output_count(self) -> int:
        """How many elements a rank gets out."""
        return self.count // self.size if self.collective == "reducescatter" else self.count


def fitting(wanted: Sequence[int], unit: int) -> List[int]:
    """Return the sizes, ascending, each once, rounded up to multiples of ``unit`` bytes (an element per rank)."""
    return sorted({-(-nbytes // unit) * unit for nbytes in wanted})


def bits_of(dtype: str, numbers: np.ndarray) -> np.ndarray:
    """Return whole numbers (that ``dtype`` holds exactly) as that type's bits."""
    floats = numbers.astype(np.float32)
    if dtype == "bfloat16":
        return (floats.view(np.uint32) >> 16).astype(np.uint16)
    if dtype == "float16":
        return floats.astype(np.float16).view(np.uint16)
    return floats


def period(size: int) -> int:
    """Return the p of the module's docstring: the largest prime up to 61 that ``size`` ranks allow; 1 from 257 on."""
    most = min(61, _LARGEST_SUM // size + 1)
    return next((p for p in range(most, 1, -1) if all(p % d for d in range(2, p))), 1)


def _one_period(rank: int, size: int, salt: int) -> np.ndarray:
    p = period(size)
    return (np.arange(p) + 3 * rank + salt) % p


def _repeated(dtype: str, numbers: np.ndarray, count: int) -> np.ndarray:
    return np.resize(bits_of(dtype, numbers), count)


def contribution(work: CollectiveCall, rank: int, salt: int, root: int) -> np.ndarray:
    """Return the bits that ``rank`` puts into its buffer."""
    if work.collective == "broadcast" and rank != root:
        return np.zeros(work.count, bits_of(work.dtype, np.zeros(1)).dtype)
    return _repeated(work.dtype, _one_period(rank, work.size, salt), work.input_count)


def expected(work: CollectiveCall, rank: int, salt: int, root: int) -> np.ndarray:
    """Return the bits that ``rank`` must find in its result."""
    size, share = work.size, work.count // work.size
    if work.collective == "broadcast":
        return contribution(work, root, salt, root)
    if work.collective == "allgather":
        return np.concatenate([contribution(work, other, salt, root) for other in range(size)])
    own_share = slice(rank * share, (rank + 1) * share)
    if work.collective == "alltoall":
        return np.concatenate([contribution(work, other, salt, root)[own_share] for other in range(size)])
    total = np.sum([_one_period(other, size, salt) for other in range(size)], axis=0)
    everywhere = _repeated(work.dtype, total, work.count)
    return everywhere[own_share] if work.collective == "reducescatter" else everywhere
