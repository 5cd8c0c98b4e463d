"""The arithmetic of the core against oracles that are exact by construction, for every kernel this machine can run.

Integers are checked against Python's own (unbounded, then wrapped); floats against numpy in the same type, which is
IEEE and so has one right answer; half types against float32 rounded once by an oracle written for this test. Results
are compared as bytes, except that one NaN is as good as another.
"""

from __future__ import annotations

import itertools
from typing import Callable, Dict, List, Optional, Sequence

import numpy as np
import pytest

from ddl import _core

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]
OPS = ["sum", "min", "max", "product", "average"]
COUNTS = [0, 1, 15, 16, 17, 1000, 4099]
KERNELS = _core.reduce_kernels()


def storage(dtype: str) -> np.dtype:
    """The numpy type that holds the bytes of ``dtype``; numpy has no bfloat16, so those are their bits."""
    return np.dtype({"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype))


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even, in exact integer arithmetic on (quotient, remainder) of the lower 16 bits."""
    bits = values.view(np.uint32).astype(np.uint64)
    kept, cut = bits >> np.uint64(16), bits & np.uint64(0xFFFF)
    up = (cut > 0x8000) | ((cut == 0x8000) & (kept % np.uint64(2) == 1))
    rounded = (kept + up).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def fold_float(op: str, values: Sequence[np.ndarray], divisor: int) -> np.ndarray:
    """Left to right in the type of ``values``; NaN wins min and max, and of equals the earlier."""
    total = values[0].copy()
    with np.errstate(all="ignore"):
        for value in values[1:]:
            if op in ("sum", "average"):
                total = total + value
            elif op == "product":
                total = total * value
            else:
                better = value < total if op == "min" else value > total
                total = np.where(better | np.isnan(value), value, total)
        return total if divisor == 1 else total / total.dtype.type(divisor)


def fold_integer(dtype: str, op: str, values: Sequence[np.ndarray], divisor: int) -> np.ndarray:
    """In Python's integers, wrapped to the type after each step, then divided towards zero."""
    info = np.iinfo(dtype)
    combine: Dict[str, Callable[[int, int], int]] = {"min": min, "max": max, "product": lambda a, b: a * b}
    result = []
    for row in zip(*(value.tolist() for value in values)):
        total = row[0]
        for value in row[1:]:
            total = combine.get(op, lambda a, b: a + b)(total, value)
            total = (total - info.min) % (info.max - info.min + 1) + info.min
        result.append(abs(total) // divisor * (-1 if total < 0 else 1))
    return np.array(result, dtype=dtype)


def oracle(dtype: str, op: str, srcs: Sequence[np.ndarray], divisor: int) -> np.ndarray:
    if dtype == "bool":
        truth = np.array([src != 0 for src in srcs])
        return (truth.any(axis=0) if op in ("sum", "average", "max") else truth.all(axis=0)).astype(np.uint8)
    if dtype == "float16":
        wide = fold_float(op, [src.astype(np.float32) for src in srcs], divisor)
        with np.errstate(over="ignore"):
            return wide.astype(np.float16)
    if dtype == "bfloat16":
        return float32_to_bfloat16(fold_float(op, [bfloat16_to_float32(src) for src in srcs], divisor))
    if dtype in FLOATS:
        return fold_float(op, srcs, divisor)
    return fold_integer(dtype, op, srcs, divisor)


def as_numbers(dtype: str, bits: np.ndarray) -> np.ndarray:
    return bfloat16_to_float32(bits) if dtype == "bfloat16" else bits


def assert_same(dtype: str, got: np.ndarray, want: np.ndarray, srcs: Sequence[np.ndarray]) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    unsigned = f"u{got.itemsize}"
    equal = got.view(unsigned) == want.view(unsigned)
    if dtype in FLOATS:
        equal |= np.isnan(as_numbers(dtype, got)) & np.isnan(as_numbers(dtype, want))
    bad = np.flatnonzero(~equal)
    if len(bad):
        i = bad[0]
        raise AssertionError(f"{len(bad)} differ, first [{i}]: {[s[i] for s in srcs]} gave {got[i]}, not {want[i]}")


def misaligned(values: np.ndarray, offset: int) -> np.ndarray:
    """A copy of the bytes of ``values`` that starts ``offset`` bytes past a 64-byte boundary."""
    room = np.zeros(values.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    view = room[start : start + values.nbytes]
    view[:] = values.view(np.uint8)
    return view


def run(
    dtype: str, op: str, srcs: Sequence[np.ndarray], divisor: int = 1, kernels: str = KERNELS[-1], offset: int = 0
) -> np.ndarray:
    """Reduce into fresh memory and check that nothing around it and no source was written."""
    views = [misaligned(src, (offset * (3 * i + 1)) % 64) for i, src in enumerate(srcs)]
    guarded = np.full(srcs[0].nbytes + 128, 0xA5, np.uint8)
    dst = guarded[64 + offset : 64 + offset + srcs[0].nbytes]
    _core.reduce_arrays(dtype, op, [dst], views, divisor, kernels)
    assert (guarded[: 64 + offset] == 0xA5).all() and (guarded[64 + offset + dst.nbytes :] == 0xA5).all()
    for view, src in zip(views, srcs):
        assert view.tobytes() == src.tobytes()
    return dst.copy().view(storage(dtype))


def random_values(dtype: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Any bits at all: of floats that includes NaN, infinities, denormals and both zeros."""
    kind = storage(dtype)
    values = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind)
    if dtype == "bool":
        values[rng.random(count) < 0.5] = 0
    if dtype in FLOATS:  # half of them of one magnitude, so that sums round and meet ties rather than swallow
        near = rng.normal(size=count).astype(np.float32)
        near = float32_to_bfloat16(near) if dtype == "bfloat16" else near.astype(kind)
        values = np.where(rng.random(count) < 0.5, near, values).astype(kind)
    return values


@pytest.mark.few(45)
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_count_of_sources_and_elements(dtype: str, op: str, kernels: str):
    rng = np.random.default_rng([DTYPES.index(dtype), OPS.index(op)])
    for n in (1, 2, 3, 5):
        for count in COUNTS:
            srcs = [random_values(dtype, count, rng) for _ in range(n)]
            divisor = n if op == "average" else 1
            got = run(dtype, op, srcs, divisor, kernels, offset=(n * 7 + count) % 64)
            assert_same(dtype, got, oracle(dtype, op, srcs, divisor), srcs)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_destination_may_be_any_source(dtype: str, kernels: str):
    rng = np.random.default_rng(5)
    for n in (1, 2, 3, 5):
        for count in (1, 17, 1000):
            srcs = [random_values(dtype, count, rng) for _ in range(n)]
            want = oracle(dtype, "sum", srcs, 1)
            for alias in range(n):
                views = [misaligned(src, 1 + i) for i, src in enumerate(srcs)]
                _core.reduce_arrays(dtype, "sum", [views[alias]], views, 1, kernels)
                assert_same(dtype, views[alias].copy().view(storage(dtype)), want, srcs)
                for i in set(range(n)) - {alias}:
                    assert views[i].tobytes() == srcs[i].tobytes()


@pytest.mark.few(43)
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("op", ["average", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_destination_gets_the_result_and_may_be_a_source(dtype: str, op: str, kernels: str):
    rng = np.random.default_rng(7)
    for n, m, count in itertools.product((1, 2, 3, 5), (1, 2, 3, 5), (1, 17, 1000)):
        srcs = [random_values(dtype, count, rng) for _ in range(n)]
        divisor = n if op == "average" else 1
        want = oracle(dtype, op, srcs, divisor)
        views = [misaligned(src, 1 + 3 * i) for i, src in enumerate(srcs)]
        fresh = [misaligned(srcs[0], 2 + 5 * i) for i in range(m)]
        targets = (views + fresh)[:m] if m > 1 else fresh  # all sources and more, some sources, or none
        _core.reduce_arrays(dtype, op, targets, views, divisor, kernels)
        for target in targets:
            assert_same(dtype, target.copy().view(storage(dtype)), want, srcs)


LONG = [65536 - 64, 65536, 65536 + 2048, 70_000 + 64]  #: bytes: around those from which loops prefetch


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_arrays(dtype: str, kernels: str):
    rng = np.random.default_rng(8)
    for nbytes, (n, m) in zip(LONG, [(2, 1), (2, 2), (3, 1), (3, 3)]):
        srcs = [random_values(dtype, nbytes // storage(dtype).itemsize + 1, rng) for _ in range(n)]
        want = oracle(dtype, "sum", srcs, 1)
        views = [misaligned(src, 1 + 3 * i) for i, src in enumerate(srcs)]
        targets = [views[0], *(misaligned(srcs[0], 2 + 5 * i) for i in range(m - 1))]
        _core.reduce_arrays(dtype, "sum", targets, views, 1, kernels)
        for target in targets:
            assert_same(dtype, target.copy().view(storage(dtype)), want, srcs)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_destination_may_be_all_sources(dtype: str, kernels: str):
    src = random_values(dtype, 1001, np.random.default_rng(6))
    view = misaligned(src, 2)
    _core.reduce_arrays(dtype, "sum", [view], [view, view, view], 1, kernels)
    assert_same(dtype, view.copy().view(storage(dtype)), oracle(dtype, "sum", [src] * 3, 1), [src] * 3)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("op", ["sum", "min", "max", "product"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_values_of_the_half_types(dtype: str, op: str, kernels: str):
    """All 65536 bit patterns against some that matter: zeros, ties, the largest, infinity, NaN, denormals."""
    everything = np.arange(65536, dtype=np.uint16).view(storage(dtype))
    partners = {"float16": (0, 0x8000, 1, 0x3C00, 0x3C01, 0x1000, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x83FF)}
    for bits in partners.get(dtype, (0, 0x8000, 1, 0x3F80, 0x3F81, 0x3B80, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x807F)):
        partner = np.full(65536, bits, np.uint16).view(storage(dtype))
        got = run(dtype, op, [everything, partner], kernels=kernels)
        assert_same(dtype, got, oracle(dtype, op, [everything, partner], 1), [everything, partner])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_once(dtype: str, kernels: str):
    """1 + 3 * (half of the last place) rounds to one place above when accumulated wide, and to 1 when not."""
    unit, half_place, expected = {"float16": (0x3C00, 0x1000, 0x3C02), "bfloat16": (0x3F80, 0x3B80, 0x3F82)}[dtype]
    srcs = [np.full(40, bits, np.uint16).view(storage(dtype)) for bits in (unit, *[half_place] * 3)]
    assert (run(dtype, "sum", srcs, kernels=kernels).view(np.uint16) == expected).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_average_of_floats_divides_truly(dtype: str, kernels: str):
    rng = np.random.default_rng(7)
    srcs = [random_values(dtype, 3001, rng) for _ in range(2)]
    for divisor in (2, 3, 5, 7, 10, 64, 100, 4096, 2**20, 2**20 - 1):
        got = run(dtype, "average", srcs, divisor, kernels)
        assert_same(dtype, got, oracle(dtype, "average", srcs, divisor), srcs)


def integer_edges(dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    edges = {info.min, info.min + 1, info.min // 2, info.max, info.max - 1, info.max // 2, 0, 1, 2, 3, 7, 100}
    if info.min < 0:
        edges |= {-1, -2, -3, -7, -100}
    return np.array(sorted(edges), dtype=dtype)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_average_of_integers_truncates_towards_zero(dtype: str, kernels: str):
    values = np.concatenate([integer_edges(dtype), random_values(dtype, 200, np.random.default_rng(8))])
    powers = [2**k for k in (0, 1, 3, 7, 8, 15, 16, 31, 32, 62, 63)]
    others = [3, 5, 7, 10, 127, 255, 641, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**32 + 1, 2**63 + 1, 2**64 - 1]
    for divisor in powers + others:
        got = run(dtype, "average", [values], divisor, kernels)
        assert_same(dtype, got, fold_integer(dtype, "average", [values], divisor), [values])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("op", ["sum", "min", "max", "product"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_at_their_limits(dtype: str, op: str, kernels: str):
    edges = integer_edges(dtype)
    left, right = (grid.ravel().copy() for grid in np.meshgrid(edges, edges))
    got = run(dtype, op, [left, right], kernels=kernels)
    assert_same(dtype, got, fold_integer(dtype, op, [left, right], 1), [left, right])


@pytest.mark.parametrize("kernels", KERNELS)
def test_known_answers(kernels: str):
    """A few by hand, so that an error which oracle and kernel share is seen."""

    def reduced(dtype: str, op: str, values: List[object], divisor: int = 1) -> object:
        return run(dtype, op, [np.array([v] * 20, storage(dtype)) for v in values], divisor, kernels)[19]

    assert reduced("int8", "sum", [127, 1]) == -128
    assert reduced("int8", "average", [-128], 128) == -1
    assert reduced("int32", "average", [-7, 0], 2) == -3
    assert reduced("uint64", "product", [2**63 + 3, 2]) == 6
    assert reduced("float32", "average", [1.0, 0.0, 0.0], 3) == np.float32(1) / np.float32(3)
    assert reduced("bool", "sum", [0, 200]) == 1
    assert reduced("bool", "product", [3, 4]) == 1
    assert reduced("bool", "average", [1, 1], 2) == 1
    assert reduced("float16", "sum", [65504.0, 15.0]) == np.float16(65504.0)
    assert reduced("float16", "sum", [65504.0, 16.0]) == np.float16(np.inf)
    for op in ("min", "max"):
        assert np.isnan(reduced("float32", op, [np.nan, 1.0])) and np.isnan(reduced("float32", op, [1.0, np.nan, 2.0]))
        assert np.signbit(reduced("float32", op, [-0.0, 0.0])) and not np.signbit(reduced("float32", op, [0.0, -0.0]))
    assert reduced("float64", "sum", [5e-324, 5e-324]) == 1e-323
    assert np.isnan(reduced("float32", "sum", [np.inf, -np.inf]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_uses_the_fastest_kernels(dtype: str):
    """Without a name the call takes the path of the engine; kernels of every width give the same bits."""
    rng = np.random.default_rng(9)
    srcs = [random_values(dtype, 777, rng) for _ in range(3)]
    dst = np.empty(srcs[0].nbytes, np.uint8)
    _core.reduce_arrays(dtype, "sum", [dst], [src.view(np.uint8) for src in srcs])
    for kernels in KERNELS:
        assert_same(dtype, run(dtype, "sum", srcs, kernels=kernels), dst.view(storage(dtype)), srcs)


def test_wrong_arguments_are_refused():
    eight = np.zeros(8, np.uint8)
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    for arguments, message in [
        (("complex64", "sum", [eight], [eight]), "complex64"),
        (("float32", "xor", [eight], [eight]), "xor"),
        (("float32", "sum", [eight], []), "at least one source"),
        (("float32", "sum", [eight], [eight], 0), "divisor"),
        (("float32", "sum", [eight], [eight, eight[:4]]), "source 1 has 4 bytes"),
        (("float32", "sum", [], [eight]), "at least one destination"),
        (("float32", "sum", [eight, eight[:4]], [eight]), "destination 1 has 4 bytes"),
        (("float32", "sum", [eight[:6]], [eight[:6]]), "6 bytes"),
        (("float32", "sum", [frozen], [eight]), "writeable"),
        (("float32", "sum", [eight], [eight], 1, "mmx"), "mmx"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.reduce_arrays(*arguments)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kernels", [None, "string", *KERNELS])
def test_copy(kernels: Optional[str], streaming: bool) -> None:
    """Every alignment of both sides, every rest; nothing beyond the ends is touched."""
    random = np.random.default_rng(5)
    source = random.integers(0, 255, max(LONG) + 500, dtype=np.uint8)
    for length in (0, 1, 15, 63, 64, 65, 255, 256, 257, 1000, 4096, 4133, *LONG, LONG[-1] + 37):
        for to, start in itertools.product((0, 1, 16, 33, 63), (0, 8, 17, 64)):
            target = np.full(length + 200, 255, np.uint8)
            _core.copy_bytes(target[to : to + length], source[start : start + length], streaming, kernels)
            assert np.array_equal(target[to : to + length], source[start : start + length]), (length, to, start)
            assert (target[:to] == 255).all() and (target[to + length :] == 255).all(), (length, to, start)
    with pytest.raises(ValueError, match="differ in length"):
        _core.copy_bytes(target, source)
