"""DDL_WIRE: float32 all-reduce written shorter between hosts. What is rounded, by how much, and what is left alone.

All ranks hold the same bits; the error against exact sums is bounded by a rounding per hop; everything that is not a
large sum of float32 between hosts stays exact.
"""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from core.values import check_equal, contribution, expected, numbers, placed

import ddl
from ddl.bootstrap.environ import Settings

pytestmark = pytest.mark.processes

CODECS = ["bf16", "fp16"]
#: Largest relative error of one rounding, and the largest absolute one of numbers that are too small for that.
ROUNDING = {"bf16": (2.0**-8, 2.0**-134), "fp16": (2.0**-11, 2.0**-25)}
#: Above the limit of small operations: one piece, several, odd ends, segments that end inside of a block, a
#: last piece of one element.
COUNTS = [4097, 5003, 65_536, 70_001, 300_007, 524_289, 1_500_007]
LAYOUTS = [("tcp", 2), ("tcp", 3), ("tcp", 4), ("hybrid", 4), ("uneven", 3), ("interleaved", 4), ("hybrid", 2)]


def rounded_sums(codec: str) -> List[bytes]:
    """Random floats of many magnitudes; returns the bytes of every result and checks the error of each element."""
    rank, size = ddl.rank(), ddl.size()
    relative, absolute = ROUNDING[codec]
    answers = []
    for count in COUNTS:
        generators = [np.random.default_rng([count, r]) for r in range(size)]
        parts = [
            g.standard_normal(count).astype(np.float32) * np.float32(2) ** g.integers(-10, 8, count) for g in generators
        ]
        parts = [part.astype(np.float32) for part in parts]
        exact = np.sum([part.astype(np.float64) for part in parts], axis=0)
        magnitude = np.sum([np.abs(part.astype(np.float64)) for part in parts], axis=0)
        bound = size * (relative * 1.02 * magnitude + absolute)
        for op, divisor in ((ddl.Sum, 1), (ddl.Average, size)):
            x = placed(parts[rank], shared=count % 2 == 0)
            result = ddl.allreduce(x, op=op)
            error = np.abs(result.astype(np.float64) - exact / divisor)
            assert (error <= bound / divisor + absolute).all(), f"{op.name} of {count}: off by {float(error.max())}"
            ddl.prepare_allreduce(x, op=op)()
            assert x.tobytes() == result.tobytes(), f"{op.name} of {count}: the same call gave other bits"
            answers.append(result.tobytes())
    return answers


@pytest.mark.few(1)
@pytest.mark.parametrize(("transport", "size"), LAYOUTS)
@pytest.mark.parametrize("codec", CODECS)
def test_the_same_bits_everywhere_and_close_to_the_sum(codec: str, transport: str, size: int) -> None:
    first, *others = ranks.run(size, rounded_sums, codec, **connected(transport, DDL_WIRE=codec))
    assert len(first) == 2 * len(COUNTS)
    assert all(other == first for other in others)


def bytes_sent(count: int, dtype: str, op: ddl.ReduceOp) -> int:
    """Of the second all-reduce; the values are whole numbers that every codec holds."""
    x = np.full(count, float(ddl.rank() + 1), dtype)
    ddl.allreduce(x, op=op)
    before = ddl.world().traffic()[1]
    total = ddl.allreduce(x, op=op)
    size = ddl.size()
    assert (total == (size * (size + 1) // 2 if op == ddl.Sum else size)).all(), total
    return ddl.world().traffic()[1] - before


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["tcp", "hybrid"])
def test_half_the_bytes_go_over_the_wire(transport: str) -> None:
    sums = {}
    for codec in ("", "float32", *CODECS):
        job = connected(transport, DDL_WIRE=codec)
        sums[codec] = sum(ranks.run(4, bytes_sent, 1 << 20, "float32", ddl.Sum, **job))
        if codec in CODECS:
            full = sum(ranks.run(4, bytes_sent, 1 << 19, "float64", ddl.Sum, **job))
            assert full == sums[""], "float64 was written shorter"
    assert sums["float32"] == sums[""] > 0 and sums["bf16"] == sums["fp16"] == sums[""] // 2, sums


def test_shared_memory_has_no_wire() -> None:
    assert ranks.run(3, bytes_sent, 1 << 20, "float32", ddl.Sum, **connected("shared", DDL_WIRE="bf16")) == [0] * 3
    first, *others = ranks.run(3, exact_in_shared_memory, **connected("shared", DDL_WIRE="bf16"))
    assert first == 0.0 and others == [0.0] * 2


def exact_in_shared_memory() -> float:
    """How far the sum of numbers that bfloat16 does not hold is off."""
    x = np.full(100_000, 1.0 + (ddl.rank() + 1) * 2.0**-12, np.float32)
    return float(np.abs(ddl.allreduce(x, op=ddl.Sum) - (3 + 6 * 2.0**-12)).max())


def left_alone() -> List[str]:
    """What is wrong with calls that no codec may touch: they are exact."""
    rank, size = ddl.rank(), ddl.size()
    wrong: List[str] = []

    def check(what: str, got: np.ndarray, want: np.ndarray) -> None:
        try:
            check_equal(got, want, what)
        except AssertionError as error:
            wrong.append(str(error))

    for dtype, count in itertools.product(["float64", "float16", "int32", "uint8"], [3, 50_001, 600_011]):
        for op in (ddl.Sum, ddl.Average, ddl.Max):
            own = contribution(dtype, op, rank, size, count)
            check(f"{op.name} of {count} {dtype}", ddl.allreduce(own, op=op), expected(dtype, op, size, count))
    fine = [
        np.float32(1) + numbers(r, 100_000 // size * size).astype(np.float32) * np.float32(2**-23) for r in range(size)
    ]
    for count in (1, 100, 4096):  # up to 16 KiB: written in full
        parts = [(np.arange(count) * (r + 1)).astype(np.float32) * np.float32(2.0**-12) for r in range(size)]
        check(
            f"sum of {count} float32", ddl.allreduce(parts[rank], op=ddl.Sum), np.sum(parts, axis=0, dtype=np.float32)
        )
    rows = fine[rank].size // size
    check("broadcast", ddl.broadcast(fine[rank], root=1), fine[1])
    check("allgather", ddl.allgather(fine[rank]), np.concatenate(fine))
    check(
        "reducescatter",
        ddl.reducescatter(fine[rank], op=ddl.Max),
        np.max(fine, axis=0)[rank * rows : (rank + 1) * rows],
    )
    check("alltoall", ddl.alltoall(fine[rank]), np.concatenate([f[rank * rows : (rank + 1) * rows] for f in fine]))
    reduced = ddl.reduce(fine[rank], op=ddl.Min, root=0)
    if reduced is not None:
        check("reduce", reduced, np.min(fine, axis=0))
    return wrong


@pytest.mark.parametrize(("transport", "size"), [("tcp", 2), ("tcp", 3), ("hybrid", 4)])
def test_what_is_no_large_sum_of_float32_stays_exact(transport: str, size: int) -> None:
    assert ranks.run(size, left_alone, **connected(transport, DDL_WIRE="bf16")) == [[]] * size


def other_operators() -> List[Tuple[str, bool, bool]]:
    """(operator, right, the same bits when repeated) for large float32 that both codecs hold exactly."""
    rank, size = ddl.rank(), ddl.size()
    answers = []
    for op in (ddl.Min, ddl.Max, ddl.Product):
        own = contribution("float32", op, rank, size, 50_001)
        got = ddl.allreduce(own, op=op)
        again = ddl.allreduce(own, op=op)
        right = np.array_equal(got, expected("float32", op, size, 50_001))
        answers.append((op.name, right, got.tobytes() == again.tobytes()))
    return answers


@pytest.mark.parametrize(("transport", "size"), [("tcp", 2), ("tcp", 3), ("hybrid", 4)])
@pytest.mark.parametrize("codec", CODECS)
def test_min_max_and_product_are_not_taken_for_sums(codec: str, transport: str, size: int) -> None:
    wanted = [(name, True, True) for name in ("Min", "Max", "Product")]
    for answer in ranks.run(size, other_operators, **connected(transport, DDL_WIRE=codec)):
        assert answer == wanted, answer


def special_values() -> List[bytes]:
    """NaN, both infinities, their sum, a negative zero, and what overflows float16."""
    nan, inf = float("nan"), float("inf")
    rows = [[1.0, nan, inf, inf, -inf, -0.0, 40_000.0, 3e38], [nan, 2.0, 5.0, -inf, -inf, -0.0, 40_000.0, 3e38]]
    x = np.tile(np.array(rows[min(ddl.rank(), 1)], dtype=np.float32), 3000)
    if ddl.rank() > 1:
        x[:] = np.tile(np.array([0, 0, 0, 0, 0, -0.0, 0, 0], np.float32), 3000)
    total = ddl.allreduce(x, op=ddl.Sum)
    return [total[at : at + 8].tobytes() for at in (0, 8 * 1499, 8 * 2999)]


@pytest.mark.parametrize(("transport", "size"), [("tcp", 2), ("tcp", 3), ("tcp", 4), ("hybrid", 4)])
@pytest.mark.parametrize("codec", CODECS)
def test_nan_and_infinity_come_through(codec: str, transport: str, size: int) -> None:
    first, *others = ranks.run(size, special_values, **connected(transport, DDL_WIRE=codec))
    assert all(other == first for other in others)
    for row in (np.frombuffer(each, np.float32) for each in first):
        assert np.isnan(row[[0, 1, 3]]).all() and row[2] == np.inf and row[4] == -np.inf, row
        assert row[5] == 0 and np.signbit(row[5]), row
        # 80,000 is beyond float16 (65,504); bfloat16 is off by less than a rounding per hop.
        assert row[6] == np.inf if codec == "fp16" else abs(row[6] - 80_000) <= 4 * 80_000 * 2.0**-8, row
        assert row[7] == np.inf, row  # also beyond float32


def not_alike(count: int, dtype: str) -> Dict[str, Any]:
    small = float(ddl.allreduce(np.ones(3, np.float32), op=ddl.Sum)[0])  # no codec takes part
    ranks.meet()  # the verdict on what follows must not find a slower rank in this one
    try:
        for _ in range(3):
            ddl.allreduce(np.ones(count, dtype), op=ddl.Sum)
        kind, text = "returned", ""
    except ddl.Error as error:
        kind, text = type(error).__name__, str(error)
    return {"small": small, "kind": kind, "text": text}


@pytest.mark.few(1)
@pytest.mark.parametrize("transport", ["tcp", "hybrid"])
@pytest.mark.parametrize("odd", ["bf16", ""])
def test_ranks_with_other_settings_are_told(odd: str, transport: str) -> None:
    job = connected(transport)
    hosts = job.pop("env_of", lambda rank: {})
    job["env_of"] = lambda rank: {**hosts(rank), "DDL_WIRE": odd if rank == 1 else "fp16"}
    for answer in ranks.run(4, not_alike, 50_000, "float32", **job):
        assert answer["small"] == 4.0, answer
        assert answer["kind"] == "ProtocolError" and "codec" in answer["text"] and "settings" in answer["text"], answer
    for answer in ranks.run(4, not_alike, 50_000, "float64", **job):
        assert answer["kind"] == "returned", answer


def test_other_names_are_refused() -> None:
    with pytest.raises(ddl.ConfigError, match="DDL_WIRE='int8'.*bf16"):
        Settings.from_environ({"DDL_WIRE": "int8"})
