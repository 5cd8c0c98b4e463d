"""float32 as bfloat16 and float16 on the wire: every kernel of this machine against an oracle of whole numbers.

The oracle rounds in Python's integers, element by element; numpy does the additions (float32, IEEE: one right answer).
Results are compared as bytes, except that one NaN is as good as another; all kernels agree even in that.
"""

from __future__ import annotations

from fractions import Fraction
from typing import List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl import _core

KERNELS = _core.reduce_kernels()
BF16, FP16 = 1, 2
CODECS = [BF16, FP16]
#: bits of exponent and fraction
FORMATS = {BF16: (8, 7), FP16: (5, 10)}


def rounded(value: float, codec: int) -> int:
    """The bits of ``value`` in the codec: to nearest, ties to even, by exact fractions; NaN is -1."""
    exponent_bits, fraction_bits = FORMATS[codec]
    bias = (1 << (exponent_bits - 1)) - 1
    sign = 1 << (exponent_bits + fraction_bits) if np.signbit(value) else 0
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    if np.isnan(value):
        return -1
    if np.isinf(value):
        return sign | infinity
    exact = abs(Fraction(float(value)))
    exponent = 1 - bias  # of the smallest normal numbers, and of all that are smaller
    while exact >= Fraction(2) ** (exponent + 1):
        exponent += 1
    places = exact / Fraction(2) ** (exponent - fraction_bits)
    whole, rest = divmod(places.numerator, places.denominator)
    up = 2 * rest > places.denominator or (2 * rest == places.denominator and whole % 2 == 1)
    # The carry out of the fraction goes into the exponent, as it should.
    bits = ((exponent + bias - 1) << fraction_bits) + whole + up
    return sign | min(bits, infinity)


def back(coded: np.ndarray, codec: int) -> np.ndarray:
    """What the bits stand for, as float32 (exact)."""
    if codec == FP16:
        return coded.view(np.float16).astype(np.float32)
    return (coded.astype(np.uint32) << np.uint32(16)).view(np.float32)


def misaligned(values: np.ndarray, offset: int) -> np.ndarray:
    """A copy of the bytes of ``values``, ``offset`` bytes past a boundary of 64."""
    room = np.zeros(values.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    view = room[start : start + values.nbytes]
    view[:] = values.view(np.uint8)
    return view


class Guarded:
    """Memory for a result between bytes that nobody may write."""

    def __init__(self, nbytes: int, offset: int) -> None:
        self._room = np.full(nbytes + 192, 0xA5, np.uint8)
        start = -self._room.ctypes.data % 64 + 64 + offset
        self.inside = self._room[start : start + nbytes]
        self._around = (self._room[:start], self._room[start + nbytes :])

    def take(self, dtype: type) -> np.ndarray:
        assert all((side == 0xA5).all() for side in self._around), "written outside of the result"
        return self.inside.copy().view(dtype)


def encode(codec: int, floats: np.ndarray, kernels: str, offset: int = 0) -> np.ndarray:
    source, target = misaligned(floats, offset * 3 % 64), Guarded(floats.size * 2, offset)
    _core.encode_floats(codec, target.inside, source, kernels)
    assert source.tobytes() == floats.tobytes()
    return target.take(np.uint16)


def decode(codec: int, coded: np.ndarray, kernels: str, offset: int = 0) -> np.ndarray:
    target = Guarded(coded.size * 4, offset)
    _core.decode_floats(codec, target.inside, misaligned(coded, offset * 5 % 64), kernels)
    return target.take(np.float32)


def add(
    codec: int, values: np.ndarray, theirs: np.ndarray, divisor: int, finish: bool, kernels: str, offset: int = 0
) -> np.ndarray:
    target = Guarded(values.nbytes, offset)
    own = misaligned(values, offset * 3 % 64)
    _core.add_encoded(codec, target.inside, own, misaligned(theirs, offset * 5 % 64), divisor, finish, kernels)
    assert own.tobytes() == values.tobytes()
    return target.take(np.float32)


def check_encoded(codec: int, floats: np.ndarray, got: np.ndarray) -> None:
    for value, bits in zip(floats.tolist(), got.tolist()):
        want = rounded(value, codec)
        right = np.isnan(back(np.array([bits], np.uint16), codec)[0]) if want < 0 else bits == want
        assert right, f"{value!r} ({value.hex()}) became {bits:#06x}, not {want:#06x}"


def corners() -> np.ndarray:
    """Both zeros, infinities and NaNs of all kinds; ties and their neighbours; the ends of both formats."""
    bits: List[int] = [0, 1, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF, 0x7F7F8000]
    bits += [0x7F7F7FFF, 0x00800000, 0x007FFFFF, 0x00008000, 0x00007FFF, 0x00018000, 0x3F808000, 0x3F818000]
    bits += [0x3F801000, 0x3F803000, 0x3F801001, 0x3F800FFF, 0x38800000, 0x387FFFFF, 0x387FE000, 0x387FF000]
    bits += [0x477FE000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x33000000, 0x33000001, 0x32FFFFFF, 0x33C00000]
    both = np.array(bits, np.uint32)
    return np.concatenate([both, both | np.uint32(0x80000000)]).view(np.float32)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("codec", CODECS)
def test_corners(codec: int, kernels: str) -> None:
    floats = np.tile(corners(), 3)
    check_encoded(codec, floats, encode(codec, floats, kernels))


def test_what_the_corners_become() -> None:
    """A few by hand, so that the oracle is held against something too."""
    values = np.array([1.0, -2.0, 65504.0, 65519.996, 65520.0, -1e30, 2.0**-24, 2.0**-25, 3.3895314e38, 3.4e38])
    halves = [0x3C00, 0xC000, 0x7BFF, 0x7BFF, 0x7C00, 0xFC00, 0x0001, 0x0000, 0x7C00, 0x7C00]
    assert encode(FP16, values.astype(np.float32), KERNELS[-1]).tolist() == halves
    brains = [0x3F80, 0xC000, 0x4780, 0x4780, 0x4780, 0xF14A, 0x3380, 0x3300, 0x7F7F, 0x7F80]
    assert encode(BF16, values.astype(np.float32), KERNELS[-1]).tolist() == brains
    nan = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    for kernels in KERNELS:
        assert np.isnan(back(encode(BF16, nan, kernels), BF16)).all()
        assert (encode(FP16, nan, kernels) & 0x7E00 == 0x7E00).all(), "a NaN that is not quiet"
        assert (encode(BF16, nan, kernels) & 0x7FC0 == 0x7FC0).all(), "a NaN that is not quiet"


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_coded_value_comes_back(codec: int, kernels: str) -> None:
    coded = np.arange(1 << 16, dtype=np.uint16)
    got, want = decode(codec, coded, kernels), back(coded, codec)
    numbers = ~np.isnan(want)
    assert (np.isnan(got) == ~numbers).all()
    assert got[numbers].tobytes() == want[numbers].tobytes()
    assert (encode(codec, got, kernels)[numbers] == coded[numbers]).all(), "what can be written is not rounded"


@pytest.mark.parametrize("codec", CODECS)
def test_all_kernels_give_the_same_bits_at_every_length_and_place(codec: int) -> None:
    rng = np.random.default_rng(codec)
    for count in [*range(70), 127, 128, 129, 1000, 4099]:
        floats = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
        near = rng.normal(size=count).astype(np.float32) * np.float32(2.0) ** rng.integers(-30, 18, count)
        floats = np.where(rng.random(count) < 0.3, floats, near).astype(np.float32)
        theirs = rng.integers(0, 1 << 16, count, dtype=np.uint16)
        offset = count * 7 % 64
        for divisor, finish in ((1, False), (1, True), (3, True), (4, False)):
            sums = [add(codec, floats, theirs, divisor, finish, kernels, offset).tobytes() for kernels in KERNELS]
            assert len(set(sums)) == 1, (count, divisor, finish)
        assert len({encode(codec, floats, kernels, offset).tobytes() for kernels in KERNELS}) == 1, count
        assert len({decode(codec, theirs, kernels, offset).tobytes() for kernels in KERNELS}) == 1, count


floats32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
words = st.integers(0, (1 << 16) - 1)


@pytest.mark.parametrize("codec", CODECS)
@given(values=st.lists(floats32, max_size=40), offset=st.integers(0, 63))
@settings(max_examples=100)
def test_rounds_to_nearest_ties_to_even(codec: int, values: List[float], offset: int) -> None:
    floats = np.array(values, np.float32)
    for kernels in KERNELS:
        check_encoded(codec, floats, encode(codec, floats, kernels, offset))


@pytest.mark.parametrize("codec", CODECS)
@given(
    pairs=st.lists(st.tuples(floats32, words), max_size=40),
    divisor=st.integers(1, 5),
    finish=st.booleans(),
    offset=st.integers(0, 63),
)
@settings(max_examples=100)
def test_sums_are_float32(codec: int, pairs: List[tuple], divisor: int, finish: bool, offset: int) -> None:
    own = np.array([pair[0] for pair in pairs], np.float32)
    theirs = np.array([pair[1] for pair in pairs], np.uint16)
    with np.errstate(all="ignore"):
        total = own + back(theirs, codec)
        want = total if divisor == 1 else total / np.float32(divisor)
        if finish:
            want = back(np.array([max(0, rounded(value, codec)) for value in want.tolist()], np.uint16), codec)
    lost = np.isnan(total)
    for kernels in KERNELS:
        got = add(codec, own, theirs, divisor, finish, kernels, offset)
        assert (np.isnan(got) == lost).all()
        assert got[~lost].tobytes() == want[~lost].tobytes(), (got, want)
        if finish:
            again = decode(codec, encode(codec, got, kernels), kernels)
            assert again.tobytes() == got.tobytes(), "who keeps the sum has something else than who is sent it"


def test_in_place_and_without_a_name() -> None:
    own = np.arange(100, dtype=np.float32)
    theirs = encode(BF16, np.full(100, 2.0, np.float32), KERNELS[0]).view(np.uint8)
    for kernels in (*KERNELS, None):
        total = own.copy()
        _core.add_encoded(BF16, total.view(np.uint8), total.view(np.uint8), theirs, 2, False, kernels)
        assert (total == (own + 2) / 2).all()


def test_what_the_bindings_refuse() -> None:
    eight, four = np.zeros(8, np.uint8), np.zeros(4, np.uint8)
    _core.encode_floats(BF16, four, eight)
    for call, word in [
        (lambda: _core.encode_floats(0, four, eight), "codec"),
        (lambda: _core.encode_floats(4, four, eight), "codec"),
        (lambda: _core.encode_floats(BF16, eight, eight), "bytes"),
        (lambda: _core.decode_floats(BF16, eight, four[:3]), "bytes"),
        (lambda: _core.encode_floats(BF16, four, eight, "abacus"), "abacus"),
        (lambda: _core.add_encoded(BF16, eight, four, four), "long"),
        (lambda: _core.add_encoded(BF16, eight, eight, four, 0), "divisor"),
    ]:
        with pytest.raises(ValueError, match=word):
            call()
