"""A communicator whose wire is "int8": what is rounded, by how much, and that nothing that is rounded is lost.

All ranks hold the same bits. Without a residual the error of a call is bounded; with one, the errors of many calls do
not add up: what a rank's messages drop is sent the next time.
"""

from __future__ import annotations

from typing import List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from core.values import placed

import ddl

pytestmark = pytest.mark.processes

#: Above the limit of small operations: one piece, several, odd ends, blocks that are not full, a
#: last piece of one element.
COUNTS = [16_411, 65_536, 70_001, 2_097_153, 4_300_001]
LAYOUTS = [("tcp", 2), ("tcp", 3), ("hybrid", 4), ("uneven", 3)]
CODED = 33 / 128  # bytes on the wire per byte of float32


def coded() -> ddl.Communicator:
    communicator = ddl.world()._split(0, wire="int8")
    assert communicator is not None and communicator.wire == "int8"
    return communicator


def block_bound(parts: List[np.ndarray]) -> np.ndarray:
    """How far from the sum one call may be: 1/64 of the greatest magnitude around, for each part and for the sum.

    Blocks begin where chunks do, so a block lies within 32 elements to both sides.
    """
    total = np.zeros(parts[0].size)
    for values in [*parts, np.sum(parts, axis=0)]:
        padded = np.pad(np.abs(values.astype(np.float64)), 31)
        total += np.lib.stride_tricks.sliding_window_view(padded, 63).max(axis=1) / 64
    return total * 1.1


def rounded_sums() -> List[bytes]:
    communicator = coded()
    rank, size = communicator.rank, communicator.size
    answers = []
    for count in COUNTS:
        generators = [np.random.default_rng([count, r]) for r in range(size)]
        parts = [g.standard_normal(count).astype(np.float32) for g in generators]
        exact = np.sum(parts, axis=0, dtype=np.float64)
        bound = block_bound(parts) if count < 100_000 else 6 * (size + 1) / 64 * 1.5
        for op, divisor in ((ddl.Sum, 1), (ddl.Average, size)):
            x = placed(parts[rank], shared=count % 2 == 0)
            result = communicator.allreduce(x, op=op)
            error = np.abs(result - exact / divisor)
            assert (error <= bound / divisor).all(), f"{op.name} of {count}: off by {error.max()}"
            residual = np.zeros(count, np.float32)
            again = communicator.prepare_allreduce(x, op=op, residual=residual)()
            assert again.tobytes() == result.tobytes(), "a residual of zeros changed the first result"
            answers.append(result.tobytes())
    return answers


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "size"), LAYOUTS)
def test_the_same_bits_everywhere_and_close_to_the_sum(transport: str, size: int) -> None:
    first, *others = ranks.run(size, rounded_sums, **connected(transport))
    assert len(first) == 2 * len(COUNTS)
    assert all(other == first for other in others)


def long_run(calls: int, background: bool) -> Tuple[float, float]:
    """The error of the sum of many calls' averages of constant gradients, with and without residual."""
    communicator = coded()
    count = 70_001
    parts = [np.random.default_rng([7, r]).standard_normal(count).astype(np.float32) for r in range(communicator.size)]
    exact = np.mean(parts, axis=0, dtype=np.float64)
    off = []
    for residual in (np.zeros(count, np.float32), None):
        total = np.zeros(count)
        x = np.empty(count, np.float32)
        step = communicator.prepare_allreduce(x, residual=residual)
        for _ in range(calls):
            x[:] = parts[communicator.rank]
            if background:
                communicator.allreduce_async_(x, residual=residual).wait()
            else:
                step()
            total += x
        off.append(float(np.abs(total - calls * exact).max()))
    return off[0], off[1]


@pytest.mark.parametrize(
    ("transport", "size", "background"), [("tcp", 2, False), ("tcp", 3, True), ("hybrid", 4, True)]
)
def test_with_a_residual_errors_do_not_add_up(transport: str, size: int, background: bool) -> None:
    calls = 40
    for fed_back, lost in ranks.run(size, long_run, calls, background, **connected(transport)):
        # A rank's rest is below 6/64 of a normal variable's tail at any time; without it rounding is biased.
        assert fed_back < 0.15
        assert lost > 4 * fed_back


def strange() -> List[bytes]:
    """One NaN, one infinity: their blocks are NaN everywhere, and the next call is whole again."""
    communicator = coded()
    count = 40_000
    residual = np.zeros(count, np.float32)
    x = np.ones(count, np.float32)
    if communicator.rank == 0:
        x[100], x[33_000] = np.nan, np.inf
    communicator.prepare_allreduce(x, residual=residual)()
    lost = np.isnan(x)
    assert lost[100] and lost[33_000] and lost.sum() <= 64 and (x[~lost] == 1).all()
    clean = np.ones(count, np.float32)
    communicator.prepare_allreduce(clean, residual=residual)()
    assert (clean == 1).all()
    return [x.tobytes(), clean.tobytes()]


@pytest.mark.parametrize("transport", ["tcp", "hybrid"])
def test_what_is_not_finite_is_seen_on_all_ranks_and_once(transport: str) -> None:
    first, *others = ranks.run(4 if transport == "hybrid" else 2, strange, **connected(transport))
    assert all(other == first for other in others)


def sent(count: int, dtype: str, op: ddl.ReduceOp) -> int:
    communicator = coded()
    x = np.full(count, float(communicator.rank + 1), dtype)
    communicator.allreduce(x, op=op)
    before = communicator.traffic()[1]
    assert communicator.allreduce(x, op=op)[0] in (3, 1.5)
    return communicator.traffic()[1] - before


@pytest.mark.parametrize(
    ("count", "dtype", "op", "share"),
    [(1 << 18, "float32", ddl.Average, CODED), (1 << 18, "float64", ddl.Sum, 1), (4096, "float32", ddl.Sum, 1)],
    ids=["float32", "other-type", "small"],
)
def test_only_large_float32_sums_are_written_shorter(count: int, dtype: str, op: ddl.ReduceOp, share: float) -> None:
    assert ranks.run(2, sent, count, dtype, op, **connected("tcp")) == [count * np.dtype(dtype).itemsize * share] * 2


def refused() -> None:
    communicator = coded()
    x = np.ones(10_000, np.float32)
    for residual in (np.zeros(9_999, np.float32), np.zeros(10_000, np.float64)):
        with pytest.raises(ddl.InvalidArgument, match="residual is"):
            communicator.prepare_allreduce(x, residual=residual)
        with pytest.raises(ddl.InvalidArgument, match="residual is"):
            communicator.allreduce_async_(x, residual=residual)
    fixed = np.zeros(10_000, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(ddl.InvalidArgument, match="residual"):
        communicator.allreduce_async_(x, residual=fixed)
    assert communicator.allreduce(x)[0] == 1


def test_residuals_that_do_not_fit_are_refused() -> None:
    ranks.run(2, refused, **connected("tcp"))


def one_other_wire() -> None:
    communicator = ddl.world()._split(0, wire="int8" if ddl.rank() else "bf16")
    assert communicator is not None
    with pytest.raises(ddl.CommunicatorError, match="same DDL settings"):
        communicator.allreduce(np.ones(100_000, np.float32))


def test_ranks_with_different_wires_find_out() -> None:
    ranks.run(2, one_other_wire, **connected("tcp"))
