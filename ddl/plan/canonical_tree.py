"""The canonical tree: the order of additions if the result must not depend on the machine.

Ranks ``[first, end)`` are cut into two parts at the largest power of two below their number. Each part is summed by
itself, and then the two sums are added, that of the lower ranks first. The order depends on rank numbers only. Aligned
blocks of 2, 4, 8, … ranks are parts of the tree. So where ranks are numbered host by host, with a power of two on each,
each host adds up its own ranks first.

The *share* of a rank in a part is the run of chunks of which it holds the sum over the part. When two parts become one,
each chunk has two holders: one of them keeps it, and the other sends its sum. No chunk moves without need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Tuple, Union

__all__ = ["CANONICAL", "Merge", "Order", "Shares", "depth", "even_shares", "merges", "order", "shares_of_one"]

#: Algorithms that must add along this tree: ``verify`` refuses their plans otherwise.
CANONICAL = frozenset({"canonical", "canonical_small"})

#: The order in which contributions were added: a rank, or the operands that one step adds, in order.
Order = Union[int, Tuple["Order", ...]]
#: A run of chunks for each rank; the runs are adjacent, in the order of the entries.
Shares = Dict[int, range]


def _cut(first: int, end: int) -> int:
    """Return the first rank of the second part of ``[first, end)``, which has two ranks or more."""
    return first + (1 << ((end - first - 1).bit_length() - 1))


def order(first: int, end: int) -> Order:
    """Return how the contributions of ranks ``[first, end)`` are added up."""
    if end - first == 1:
        return first
    cut = _cut(first, end)
    return order(first, cut), order(cut, end)


def depth(rank: int, first: int, end: int) -> int:
    """Return through how many additions the contribution of ``rank`` goes inside the part ``[first, end)``."""
    count = 0
    while end - first > 1:
        cut = _cut(first, end)
        first, end = (first, cut) if rank < cut else (cut, end)
        count += 1
    return count


@dataclass(frozen=True)
class Merge:
    """Two parts become ``[first, end)``; ``own`` and ``theirs`` are the shares before, ``merged`` those after."""

    first: int
    end: int
    own: Shares
    theirs: Shares
    merged: Shares

    def gives(self, rank: int) -> List[Tuple[int, range]]:
        """Return which chunks ``rank``, of ``own``, sends to which ranks."""
        return _common(self.own[rank], {other: self.merged[other] for other in self.theirs})

    def takes(self, rank: int) -> List[Tuple[int, range]]:
        """Return which chunks ``rank``, of ``own``, receives from which ranks, to add them to its own."""
        return _common(self.merged[rank], self.theirs)


def merges(shares: Shares, rank: int) -> List[Merge]:
    """Return the merges on the path of ``rank`` from its leaf to the root, where all ranks have ``shares``."""
    first, end, merged = 0, len(shares), shares
    result = []
    while end - first > 1:
        cut = _cut(first, end)
        low, high = _narrowed(merged, first, cut), _narrowed(merged, cut, end)
        own, theirs = (low, high) if rank < cut else (high, low)
        result.append(Merge(first, end, own, theirs, merged))
        first, end = (first, cut) if rank < cut else (cut, end)
        merged = own
    return result[::-1]


def even_shares(size: int) -> Shares:
    """Return shares of one chunk per rank that are even, or nearly even, in every part of the tree."""
    return {rank: range(chunk, chunk + 1) for chunk, rank in enumerate(_interleaved(0, size))}


def shares_of_one(size: int, owner: int) -> Shares:
    """Return shares of a single chunk, which belongs to ``owner``."""
    return {owner: range(1), **{rank: range(1, 1) for rank in range(size) if rank != owner}}


def _interleaved(first: int, end: int) -> List[int]:
    """Return the ranks ``[first, end)``, with the ranks of the two parts evenly mixed."""
    if end - first == 1:
        return [first]
    cut = _cut(first, end)
    low, high = _interleaved(first, cut), _interleaved(cut, end)
    places = [(i * len(high), 0, rank) for i, rank in enumerate(low)]
    places += [(i * len(low), 1, rank) for i, rank in enumerate(high)]
    return [rank for _, _, rank in sorted(places)]


def _narrowed(shares: Shares, first: int, end: int) -> Shares:
    """Give all chunks to the ranks ``[first, end)``: each keeps its own, and the shares are as even as that allows."""
    kept = [(rank, run) for rank, run in shares.items() if first <= rank < end]
    chunks = max(run.stop for run in shares.values())
    limits = [0]
    for i in range(1, len(kept)):
        limits.append(min(max(chunks * i // len(kept), kept[i - 1][1].stop), kept[i][1].start))
    limits.append(chunks)
    return {rank: range(limits[i], limits[i + 1]) for i, (rank, _) in enumerate(kept)}


def _common(own: range, shares: Mapping[int, range]) -> List[Tuple[int, range]]:
    runs = [(rank, range(max(own.start, run.start), min(own.stop, run.stop))) for rank, run in shares.items()]
    return [(rank, run) for rank, run in runs if run]
