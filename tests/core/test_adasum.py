"""Adasum against the formula written down in numpy, on any number of ranks, and with the same bits on all of them."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

import ddl
from ddl.adapter.adasum import adasum_

#: Of one rounding to the type, relative.
EPSILON = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}
#: Elements of the tensors that lie one after the other: none, one, fewer and more than blocks and ranks.
TENSORS = ([5], [1], [0, 3, 1, 40], [3, 20_000, 0, 30_001])


def pair(a, b):
    """The formula of the paper."""
    product, aa, bb = a @ b, a @ a, b @ b
    return (1 - product / (2 * aa) if aa else 1) * a + (1 - product / (2 * bb) if bb else 1) * b


def oracle(vectors):
    """The binary tree over the ranks, in float64."""
    vectors = [vector.astype(np.float64) for vector in vectors]
    while len(vectors) > 1:
        above = [pair(a, b) for a, b in zip(vectors[::2], vectors[1::2])]
        vectors = above + vectors[2 * len(above) :]
    return vectors[0]


def contribution(rank, lengths, dtype):
    """Tensors that neither point the same way on all ranks nor are orthogonal; one is zero on rank 1."""
    make = np.random.default_rng(rank)
    tensors = [(make.standard_normal(n) + 0.5).astype(dtype) for n in lengths]
    if rank == 1:
        tensors[-1][:] = 0
    return tensors


def against_the_formula():
    size, rank = ddl.size(), ddl.rank()
    for dtype, epsilon in EPSILON.items():
        for lengths in TENSORS:
            starts = np.cumsum([0, *lengths])[:-1].tolist()
            everybody = [contribution(r, lengths, dtype) for r in range(size)]
            own = np.concatenate(everybody[rank])
            assert adasum_(ddl.world(), own, starts=starts) is own
            expected = np.concatenate([oracle(tensors) for tensors in zip(*everybody)])
            np.testing.assert_allclose(own, expected, rtol=4 * epsilon, atol=20 * epsilon)
            rows = ddl.allgather(own[np.newaxis])
            assert (rows == rows[0]).all()


def what_it_is_for():
    """Orthogonal vectors are added, parallel ones averaged: exactly, with numbers that float32 holds."""
    size, rank = ddl.size(), ddl.rank()
    orthogonal = np.zeros((size, 7), np.float32)
    orthogonal[rank] = 3
    assert (adasum_(ddl.world(), orthogonal) == 3).all()
    parallel = np.arange(9, dtype=np.float32) - 4
    assert (adasum_(ddl.world(), parallel.copy()) == parallel).all()
    nothing = adasum_(ddl.world(), np.zeros(5, np.float16))
    assert (nothing == 0).all()
    one_alone = adasum_(ddl.world(), np.full(5, 2.0 * (rank == size - 1)))
    assert (one_alone == 2).all()
    tiny = adasum_(ddl.world(), np.full(3, [1e-45, 1e38][rank % 2], np.float32))  # factors that float32 cannot hold
    assert np.isfinite(tiny).all() and (tiny > 0).all()
    spoilt = adasum_(ddl.world(), np.array([np.nan if rank == 0 else 1.0, 1.0, 1.0]), starts=(0, 1))
    assert np.isnan(spoilt[0]) and spoilt[1] == 1


def refusals():
    for array, starts, message in (
        (np.ones(4, np.int32), (0,), "int32"),
        (np.ones((4, 4))[:, 1], (0,), "contiguous"),
        (np.ones(4), (1,), "starts"),
        (np.ones(4), (0, 5), "starts"),
        (np.ones(4), (0, 3, 2), "starts"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=message):
            adasum_(ddl.world(), array, starts=starts)
    with pytest.raises(ddl.InvalidArgument, match="op must be one of"):
        ddl.allreduce_(np.ones(3), op=ddl.Adasum)


def run_adasum():
    against_the_formula()
    what_it_is_for()
    refusals()
    return True


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_adasum(size):
    assert ranks.run(size, run_adasum) == [True] * size
