"""All-reduce: every type, operator, size, way in which buffers lie and way in which ranks are connected.

The combinations of buffers (in place or not; shared, private, mixed by rank) rotate over types, operators and counts,
so that each meets each type and each count in some case.
"""

from __future__ import annotations

import itertools
from typing import List, Sequence

import numpy as np
import pytest
import ranks
from core.jobs import TRANSPORTS, connected
from core.values import DTYPES, OPS, allowed, check_equal, contribution, expected, for_ddl, placed, storage

import ddl

pytestmark = pytest.mark.processes

#: (in place, shared memory on even ranks, on odd ranks)
BUFFERS = list(itertools.product((False, True), (False, True), (False, True)))
#: Bytes at which another plan or one more piece begins, in shared memory and elsewhere.
SHARED_LIMITS, LIMITS = [8 << 10, 1 << 20], [16 << 10, 2 << 20]


def check_allreduce(dtype: str, op: ddl.ReduceOp, count: int, layout: Sequence[bool], salt: int) -> None:
    rank, size = ddl.rank(), ddl.size()
    in_place, *shared = layout
    own = contribution(dtype, op, rank, size, count, salt)
    want = expected(dtype, op, size, count, salt)
    what = f"{op.name} of {count} {dtype} on {size}, in place/shared even/odd: {layout}"
    x = placed(own, shared[rank % 2])
    if in_place or dtype == "bfloat16":  # numpy has no bfloat16 for a result of its own
        target = for_ddl(dtype, x)
        assert ddl.allreduce_(target, op=op) is target, what
        check_equal(x, want, what)
    else:
        check_equal(ddl.allreduce(x, op=op), want, what)
        check_equal(x, own, what + ": the input was changed")


def small_counts(size: int) -> List[int]:
    return sorted({0, 1, size - 1, size, size + 1, 2 * size + 1, 15, 16, 17, 127, 1009, 2053})


def every_type_and_operator() -> int:
    rotation = itertools.cycle(BUFFERS)
    done = 0
    for dtype, op in itertools.product(DTYPES, OPS):
        for count in small_counts(ddl.size()):
            if allowed(dtype, op):
                check_allreduce(dtype, op, count, next(rotation), salt=done)
                done += 1
        next(rotation)  # the number of counts may share a divisor with the number of layouts
    return done


def around_the_limits(dtypes: Sequence[str], limits: Sequence[int]) -> int:
    rotation = itertools.cycle(BUFFERS)
    done = 0
    for dtype in dtypes:
        element = storage(dtype).itemsize
        for limit, off in itertools.product(limits, (-1, 0, 1)):
            check_allreduce(dtype, OPS[done % 2], limit // element + off, next(rotation), salt=done)
            done += 1
        next(rotation)
    return done


def several_pieces(megabytes: float) -> int:
    """More pieces than run at once, cheap to check: rank r brings r + 1 times a ramp, and a ramp raised by r."""
    rank, size = ddl.rank(), ddl.size()
    count = int(megabytes * (1 << 20)) // 4 + 7919
    ramp = (np.arange(count) % 8191).astype(np.float32)
    bytes_ = (np.arange(2 * count) % 113).astype(np.int8)
    for number, (in_place, *shared) in enumerate(BUFFERS):
        wide = number in (0, 3, 5, 6)  # each kind of buffers meets both
        own = ramp * np.float32(rank + 1) if wide else bytes_ + np.int8(rank)
        want = ramp * np.float32(size * (size + 1) // 2) if wide else bytes_ + np.int8(size - 1)
        x = placed(own, shared[rank % 2])
        op = ddl.Sum if wide else ddl.Max
        got = ddl.allreduce_(x, op=op) if in_place else ddl.allreduce(x, op=op)
        check_equal(got, want, f"{op.name} of {x.size} {x.dtype}, {BUFFERS[number]}")
    return len(BUFFERS)


@pytest.mark.few(4)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_type_and_operator(size: int, transport: str) -> None:
    assert min(ranks.run(size, every_type_and_operator, **connected(transport))) > 600


@pytest.mark.few(3)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_around_the_limits_of_the_selection(size: int, transport: str) -> None:
    dtypes = [["float32", "int8"], ["bfloat16", "float64"], ["float16", "uint16"]][size - 2]
    limits = SHARED_LIMITS if transport == "shared" else LIMITS
    assert ranks.run(size, around_the_limits, dtypes, limits, **connected(transport)) == [12] * size


@pytest.mark.few(2)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_several_pieces(size: int, transport: str) -> None:
    assert ranks.run(size, several_pieces, 9.5, **connected(transport)) == [8] * size


@pytest.mark.few(3)
@pytest.mark.parametrize(("size", "transport"), [(5, "tcp"), (5, "hybrid"), (8, "shared"), (8, "hybrid")])
def test_more_ranks_than_cores(size: int, transport: str) -> None:
    limits = SHARED_LIMITS if transport == "shared" else LIMITS
    assert ranks.run(size, around_the_limits, ["float64"], limits, **connected(transport)) == [6] * size


def random_floats(dtype: str) -> List[bytes]:
    """Return every result's bytes; check the error against the sum in long double."""
    rank, size = ddl.rank(), ddl.size()
    answers = []
    for count in (1, 33, 2500, 70_001, 300_007):
        parts = [np.random.default_rng([count, r]).standard_normal(count).astype(dtype) for r in range(size)]
        exact = np.sum([part.astype(np.longdouble) for part in parts], axis=0)
        bound = size * np.finfo(dtype).eps * np.sum([np.abs(part.astype(np.longdouble)) for part in parts], axis=0)
        for op, divisor in ((ddl.Sum, 1), (ddl.Average, size)):
            x = placed(parts[rank], shared=count % 2 == 0)
            result = ddl.allreduce(x, op=op)
            again = ddl.allreduce(x, op=op)
            assert result.tobytes() == again.tobytes(), f"{count} {dtype}: the same call gave other bits"
            error = np.abs(result.astype(np.longdouble) - exact / divisor)
            # Half types may round to a subnormal step once more per rank.
            slack = size * float(np.finfo(dtype).tiny)
            assert (error <= bound / divisor + slack).all(), f"{count} {dtype} {op.name}: {float(error.max())} off"
            answers.append(result.tobytes())
    return answers


@pytest.mark.few(2)
@pytest.mark.parametrize(("size", "transport"), [(4, "shared"), (3, "tcp"), (4, "hybrid")])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_random_floats_have_the_same_bits_everywhere(dtype: str, size: int, transport: str) -> None:
    first, *others = ranks.run(size, random_floats, dtype, **connected(transport))
    assert len(first) == 10
    assert all(other == first for other in others)


def special_values() -> List[bytes]:
    rank = ddl.rank()
    nan, inf = float("nan"), float("inf")
    rows = [[1.0, nan, inf, inf, -inf, -0.0, 3e38], [nan, 2.0, inf, -inf, -inf, -0.0, 3e38]]
    x = np.tile(np.array(rows[rank % 2], dtype=np.float32), 1000)
    with np.errstate(all="ignore"):
        return [np.isnan(y := ddl.allreduce(x, op=op)).tobytes() + np.nan_to_num(y).tobytes() for op in OPS]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nan_and_infinity_travel(transport: str) -> None:
    first, *others = ranks.run(4, special_values, **connected(transport))
    assert all(other == first for other in others)
    rows = np.frombuffer(first[0][7000 * 1 :], dtype=np.float32)[:7]
    assert np.frombuffer(first[0][:7], dtype=bool).tolist() == [True, True, False, True, False, False, False]
    assert rows[2] == np.finfo(np.float32).max and rows[4] == np.finfo(np.float32).min and np.signbit(rows[5])
    assert rows[6] == np.finfo(np.float32).max  # overflow to infinity, which nan_to_num shows as the largest
