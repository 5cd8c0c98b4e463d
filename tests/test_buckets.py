"""How gradients are fused into buckets: each exactly once, aligned, in the order a backward pass fills them."""

from __future__ import annotations

from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl import InvalidArgument
from ddl.plan.buckets import ALIGNMENT, Bucket, Gradient, assign, group_numbers

ITEMSIZE = {"float16": 2, "float32": 4, "float64": 8}


def floats(*lengths: int) -> List[Gradient]:
    return [Gradient(length, "float32", 4) for length in lengths]


def items(buckets: List[Bucket]) -> List[List[int]]:
    return [[slot.item for slot in bucket.slots] for bucket in buckets]


def test_gradients_are_laid_out_in_reverse():
    (bucket,) = assign(floats(16, 32, 48))
    assert [(slot.item, slot.offset, slot.length) for slot in bucket.slots] == [(2, 0, 48), (1, 48, 32), (0, 80, 16)]
    assert (bucket.flags_offset, bucket.length, bucket.bytes) == (96, 100, 400)


def test_the_first_bucket_is_small():
    buckets = assign(floats(*[16] * 10), bucket_bytes=64 * 4, first_bucket_bytes=64)
    assert items(buckets) == [[9], [8, 7, 6, 5], [4, 3, 2, 1], [0]]


def test_a_large_gradient_has_its_own_bucket():
    assert items(assign(floats(16, 1000, 16), bucket_bytes=256)) == [[2], [1], [0]]


def test_a_bucket_has_one_type_and_is_sent_when_its_last_gradient_is_there():
    single, double = Gradient(8, "float32", 4), Gradient(8, "float64", 8)
    buckets = assign([single, double, single, double, single])
    assert [(bucket.dtype, [slot.item for slot in bucket.slots]) for bucket in buckets] == [
        ("float64", [3, 1]),
        ("float32", [4, 2, 0]),
    ]


def test_a_group_has_a_bucket_for_each_of_its_types_and_shares_it_with_nobody():
    lengths = [
        Gradient(16, dtype, ITEMSIZE[dtype], group)
        for dtype, group in (
            *(("float32", None), ("float32", 7), ("float64", 7), ("float32", None), ("float32", 7), ("float32", None)),
        )
    ]
    buckets = assign(lengths, bucket_bytes=64, first_bucket_bytes=64)  # each of one gradient, but for the group's
    assert items(buckets) == [[5], [3], [2], [4, 1], [0]]
    assert items(assign(lengths)) == [[2], [4, 1], [5, 3, 0]]


def test_nothing_gives_no_buckets():
    assert assign([]) == []


def test_empty_gradients_have_slots():
    (bucket,) = assign(floats(0, 4, 0))
    assert [(slot.item, slot.offset, slot.length) for slot in bucket.slots] == [(2, 0, 0), (1, 0, 4), (0, 16, 0)]


@pytest.mark.parametrize("bounds", [{"bucket_bytes": 0}, {"first_bucket_bytes": -1}])
def test_impossible_bounds_are_refused(bounds):
    with pytest.raises(InvalidArgument, match=next(iter(bounds))):
        assign(floats(1), **bounds)


def test_impossible_sizes_are_refused():
    with pytest.raises(InvalidArgument, match="gradient 1"):
        assign(floats(1, -1))


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from(sorted(ITEMSIZE))), max_size=60),
    st.integers(1, 4096),
    st.integers(1, 4096),
)
def test_properties(sizes, bucket_bytes, first_bucket_bytes):
    gradients = [Gradient(length, dtype, ITEMSIZE[dtype]) for length, dtype in sizes]
    buckets = assign(gradients, bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes)
    assert sorted(slot.item for bucket in buckets for slot in bucket.slots) == list(range(len(gradients)))
    for number, bucket in enumerate(buckets):
        end = 0
        for slot in bucket.slots:
            assert gradients[slot.item].dtype == bucket.dtype
            assert gradients[slot.item].length == slot.length
            assert slot.offset * bucket.itemsize % ALIGNMENT == 0
            assert end <= slot.offset < end + ALIGNMENT
            end = slot.offset + slot.length
        assert end <= bucket.flags_offset
        assert [slot.item for slot in bucket.slots] == sorted((slot.item for slot in bucket.slots), reverse=True)
        if len(bucket.slots) > 1:
            assert end * bucket.itemsize <= bucket_bytes
        if number:
            assert bucket.slots[-1].item < buckets[number - 1].slots[-1].item


def test_groups_are_given_as_lists_or_as_their_number():
    tensors = [object() for _ in range(5)]
    assert group_numbers(tensors, None) == group_numbers(tensors, 0) == group_numbers(tensors, []) == []
    assert group_numbers(tensors, 2) == list(zip(tensors, [0, 0, 0, 1, 1]))
    assert group_numbers(tensors, [tensors[3:], tensors[:1]]) == [(tensors[3], 0), (tensors[4], 0), (tensors[0], 1)]
    with pytest.raises(InvalidArgument, match="groups=-1"):
        group_numbers(tensors, -1)
    with pytest.raises(InvalidArgument, match="groups 0 and 1 have the same"):
        group_numbers(tensors, [tensors[:2], tensors[1:]])
