"""Fuses gradients into buckets: which gradient lies where, in which bucket, and in which order buckets are sent.

Every adapter uses it, so it knows only sizes: no framework, no memory, no communication. A bucket is one flat buffer of
one element type that is all-reduced as a whole. Gradients lie in it in *reverse* order, because a backward pass makes
them in that order. Buckets are numbered in the order in which their last gradient is expected.

Behind its gradients a bucket has one *flag* element per gradient: 1 if this rank has used the parameter, else 0. Flags
are reduced (sum or average) with the gradients. So every rank knows afterwards, without another message, whether any
rank has used a parameter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Hashable, List, Optional, Sequence, Tuple, TypeVar, Union

from ddl.errors import InvalidArgument

__all__ = ["ALIGNMENT", "BUCKET_BYTES", "FIRST_BUCKET_BYTES", "Bucket", "BucketSlot", "Gradient", "assign"]
__all__ += ["group_numbers"]

T = TypeVar("T")

ALIGNMENT = 64  # bytes; a cache line, so that no two gradients share one
BUCKET_BYTES = 8 << 20
# The first bucket is small: it is sent early in the backward pass, when there is most left to overlap with.
FIRST_BUCKET_BYTES = 1 << 20


@dataclass(frozen=True)
class Gradient:
    """What ``assign`` must know of one gradient: elements, element type (any hashable), bytes per element.

    Gradients of one ``group`` (a number) share a bucket with one another, and with no others; None: no group.
    """

    length: int
    dtype: Hashable
    itemsize: int
    group: Optional[int] = None


@dataclass(frozen=True)
class BucketSlot:
    """Where gradient number ``item`` lies: ``length`` elements from ``offset`` (in elements) of its bucket."""

    item: int
    offset: int
    length: int


@dataclass(frozen=True)
class Bucket:
    """One flat buffer of ``length`` elements; flag ``i``, at ``flags_offset + i``, belongs to ``slots[i]``.

    One more flag, the last, says that a rank came with gradients of its own (or none), and has not joined.
    """

    dtype: Hashable
    itemsize: int
    slots: Tuple[BucketSlot, ...]
    flags_offset: int

    @property
    def length(self) -> int:
        """Elements of the buffer: gradients, padding and flags."""
        return self.flags_offset + len(self.slots) + 1

    @property
    def bytes(self) -> int:
        """Bytes of the buffer."""
        return self.length * self.itemsize


class _OpenBucket:
    """A bucket that still takes gradients."""

    def __init__(self, first: Gradient, limit_bytes: float) -> None:
        self.dtype, self.itemsize, self.limit_bytes = first.dtype, first.itemsize, limit_bytes
        self.slots: List[BucketSlot] = []
        self.end = 0  # elements, aligned

    def takes(self, gradient: Gradient) -> bool:
        """Whether ``gradient`` fits; the first one always does, so that a huge gradient has a bucket of its own."""
        return not self.slots or (self.end + gradient.length) * self.itemsize <= self.limit_bytes

    def add(self, item: int, gradient: Gradient) -> None:
        self.slots.append(BucketSlot(item, self.end, gradient.length))
        step = max(1, ALIGNMENT // self.itemsize)
        self.end += -(-gradient.length // step) * step

    def close(self) -> Bucket:
        return Bucket(self.dtype, self.itemsize, tuple(self.slots), self.end)


def assign(
    gradients: Sequence[Gradient],
    *,
    bucket_bytes: int = BUCKET_BYTES,
    first_bucket_bytes: int = FIRST_BUCKET_BYTES,
) -> List[Bucket]:
    """Return the buckets of ``gradients``, which are given in order of use; every gradient is in exactly one slot.

    Pure: ranks that pass the same get the same. ``bucket_bytes`` bounds the gradients in one bucket; a gradient that
    is larger has a bucket for itself. The first bucket holds ``first_bucket_bytes`` at most, if that is less. A group
    has one bucket for each of its types, however large. Raises ``InvalidArgument`` for a bound below 1 or a negative
    length.
    """
    for name, value in (("bucket_bytes", bucket_bytes), ("first_bucket_bytes", first_bucket_bytes)):
        if value < 1:
            raise InvalidArgument(f"buckets: {name}={value} must be 1 or more")
    open_buckets: Dict[Tuple[Hashable, Optional[int]], _OpenBucket] = {}
    done: List[Bucket] = []
    limit = min(first_bucket_bytes, bucket_bytes)
    for item in range(len(gradients) - 1, -1, -1):
        gradient = gradients[item]
        if gradient.length < 0 or gradient.itemsize < 1:
            raise InvalidArgument(f"buckets: gradient {item} has the impossible size {gradient}")
        key = (gradient.dtype, gradient.group)
        bucket = open_buckets.get(key)
        if bucket is not None and not bucket.takes(gradient):
            done.append(bucket.close())
            bucket = None
        if bucket is None and gradient.group is not None:
            bucket = open_buckets[key] = _OpenBucket(gradient, math.inf)
        elif bucket is None:
            bucket = open_buckets[key] = _OpenBucket(gradient, limit)
            limit = bucket_bytes
        bucket.add(item, gradient)
    done.extend(bucket.close() for bucket in open_buckets.values())
    # Element types interleave: what is complete first is sent first.
    return sorted(done, key=lambda bucket: -bucket.slots[-1].item)


def group_numbers(trained: Sequence[T], groups: Union[None, int, Sequence[Sequence[T]]]) -> List[Tuple[T, int]]:
    """Return what is in a group, with its number. ``T``: what a framework calls a parameter or variable.

    ``groups``: lists of them, or a number: then ``trained`` go, in order, into so many groups of about the same number.
    None or 0: there are none. Raises ``InvalidArgument`` for a negative number, and for one that two groups have.
    """
    if isinstance(groups, int):
        if groups < 0:
            raise InvalidArgument(f"groups={groups} must be a number of groups from 0 on, or lists of parameters")
        return [(parameter, i * groups // len(trained)) for i, parameter in enumerate(trained)] if groups else []
    numbers: Dict[int, int] = {}
    numbered: List[Tuple[T, int]] = []
    for number, group in enumerate(groups or ()):
        for parameter in group:
            other = numbers.setdefault(id(parameter), number)
            if len(numbers) == len(numbered):
                raise InvalidArgument(f"groups {other} and {number} have the same parameter; one may have it")
            numbered.append((parameter, number))
    return numbered
