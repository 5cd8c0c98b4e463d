"""The canonical tree: in which order additions are made where the result may not depend on the machine.

Ranks ``[first, end)`` are two parts, cut at the largest power of two below their number; each part is summed by itself,
and then the two sums are added, that of the lower ranks first. Only rank numbers decide. Aligned blocks of 2, 4, 8, …
ranks are parts of the tree, so ranks that lie host by host, a power of two on each, add up inside their host first.

The *share* of a rank in a part is the run of chunks whose sum over the part it holds. When two parts become one, every
chunk stays with one of its two holders, to whom the other hands its sum: nothing moves that need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Tuple, Union

__all__ = ["CANONICAL", "Merge", "Order", "Shares", "depth", "even_shares", "merges", "order", "shares_of_one"]

#: Algorithms that must add along this tree: ``verify`` refuses their plans otherwise.
CANONICAL = frozenset({"canonical", "canonical_small"})

#: How contributions were added up: that of one rank, or operands that one step adds, in order.
Order = Union[int, Tuple["Order", ...]]
#: Chunks by rank; the runs follow on one another in the order of the entries.
Shares = Dict[int, range]


def _cut(first: int, end: int) -> int:
    """Return the first rank of the right part of ``[first, end)``, which has two ranks or more."""
    return first + (1 << ((end - first - 1).bit_length() - 1))


def order(first: int, end: int) -> Order:
    """Return how the contributions of ranks ``[first, end)`` are added up."""
    if end - first == 1:
        return first
    cut = _cut(first, end)
    return order(first, cut), order(cut, end)


def depth(rank: int, first: int, end: int) -> int:
    """Return in how many additions inside the part ``[first, end)`` the contribution of ``rank`` takes part."""
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
        """Return to whom ``rank``, of ``own``, hands over which chunks."""
        return _common(self.own[rank], {other: self.merged[other] for other in self.theirs})

    def takes(self, rank: int) -> List[Tuple[int, range]]:
        """Return from whom ``rank``, of ``own``, gets which chunks, to add them to its own."""
        return _common(self.merged[rank], self.theirs)


def merges(shares: Shares, rank: int) -> List[Merge]:
    """Return the merges on the way of ``rank`` from its leaf to the root, where all ranks have ``shares``."""
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
    """Return shares of one chunk for each rank, such that they are even, or nearly so, in all parts."""
    return {rank: range(chunk, chunk + 1) for chunk, rank in enumerate(_interleaved(0, size))}


def shares_of_one(size: int, owner: int) -> Shares:
    """Return shares of one chunk in all, which is ``owner``'s."""
    return {owner: range(1), **{rank: range(1, 1) for rank in range(size) if rank != owner}}


def _interleaved(first: int, end: int) -> List[int]:
    """Return the ranks ``[first, end)`` with those of both parts spread evenly among one another."""
    if end - first == 1:
        return [first]
    cut = _cut(first, end)
    left, right = _interleaved(first, cut), _interleaved(cut, end)
    places = [(i * len(right), 0, rank) for i, rank in enumerate(left)]
    places += [(i * len(left), 1, rank) for i, rank in enumerate(right)]
    return [rank for _, _, rank in sorted(places)]


def _narrowed(shares: Shares, first: int, end: int) -> Shares:
    """Deal all chunks to the ranks ``[first, end)``: each keeps what it has, and limits are as even as that allows."""
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
