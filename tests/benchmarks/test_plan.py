"""Sizes, numbers of calls, patterns: what all ranks of all contestants must agree on."""

from __future__ import annotations

import argparse
from typing import List

import numpy as np
import pytest

from benchmarks.collectives.call_counts import MOST_CALLS, TimingPace, call_counts, parse_call_counts
from ddl.text.units import exact_bytes_text
from ddl.tools.bench import loop, values
from ddl.tools.bench.values import COLLECTIVES, DTYPES, CollectiveCall, fitting
from ddl.tools.sizes import parse_sizes


def test_sizes_have_suffixes():
    assert parse_sizes("8,1K,64k,4M,1G") == [8, 1 << 10, 64 << 10, 4 << 20, 1 << 30]


@pytest.mark.parametrize("text", ["", "8,", "4T", "-1", "0", "8;9", "1.5K"])
def test_wrong_sizes_are_refused(text: str):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_sizes(text)


def test_sizes_fit_elements_and_ranks():
    assert fitting([4096, 8, 9, 16], 16) == [16, 4096]


@pytest.mark.parametrize(
    ("nbytes", "text"), [(8, "8 B"), (1 << 10, "1 KiB"), (1500, "1500 B"), (48 << 20, "48 MiB"), (1 << 30, "1 GiB")]
)
def test_sizes_are_readable(nbytes: int, text: str):
    assert exact_bytes_text(nbytes) == text


def test_larger_sizes_are_called_less_often():
    pace = TimingPace(0.3, 2e9)
    calls = [pace.calls(nbytes) for nbytes in (8, 1 << 20, 32 << 20, 1 << 30)]
    assert calls == sorted(calls, reverse=True)
    assert calls[0] == MOST_CALLS and calls[-1] == pace.least


def test_the_worker_reads_what_the_command_writes():
    pace = TimingPace(0.01, 2e9)
    text = call_counts([8, 4096], pace)
    assert parse_call_counts(text) == [(n, pace.calls(n), pace.warmup(n)) for n in (8, 4096)]


@pytest.mark.parametrize("cycle", [1, 2, 3, 8])
def test_buffers_are_rotated(cycle: int):
    for nbytes in (8, 1 << 20, 16 << 20, 32 << 20, 128 << 20, 1 << 30):
        sets = loop.buffer_sets(nbytes, cycle)
        assert sets >= 2 and sets % cycle == 0
        assert sets >= 4 or nbytes > 16 << 20


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 128])
def test_sums_are_exact_in_every_type(size: int):
    p = values.period(size)
    assert size * (p - 1) <= 256
    assert p == 1 or all(p % d for d in range(2, p))
    assert p > 1


def as_numbers(dtype: str, bits: np.ndarray) -> np.ndarray:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "float16" else bits


def meaning(collective: str, inputs: List[np.ndarray], rank: int, root: int) -> np.ndarray:
    if collective == "broadcast":
        return inputs[root]
    if collective == "allgather":
        return np.concatenate(inputs)
    if collective == "alltoall":
        return np.concatenate([np.split(array, len(inputs))[rank] for array in inputs])
    total: np.ndarray = np.sum(inputs, axis=0)
    return total if collective == "allreduce" else np.split(total, len(inputs))[rank]


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("size", [2, 4])
def test_what_is_expected_is_what_the_collective_means(dtype: str, size: int):
    """Against numpy's own words for each collective."""
    for collective in COLLECTIVES:
        work, root = CollectiveCall(collective, dtype, 60 * size, size), 1
        inputs = [as_numbers(dtype, values.contribution(work, rank, 5, root)) for rank in range(size)]
        for rank in range(size):
            got = as_numbers(dtype, values.expected(work, rank, 5, root))
            assert got.size == work.output_count
            np.testing.assert_array_equal(got, meaning(collective, inputs, rank, root))
