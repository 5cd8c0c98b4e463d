"""float32 as MXINT8 on the wire: every kernel of this machine against an oracle in float64, where all of it is exact.

Blocks of 32 floats with a shared exponent; what is dropped goes to the residual, to the bit.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddl import _core

KERNELS = _core.reduce_kernels()
MXINT8 = 3
BLOCK = 32
#: Ends of blocks and of vectors of every width.
COUNTS = [0, 1, 3, 4, 5, 31, 32, 33, 63, 64, 65, 96, 1000, 4099]


def coded_bytes(count: int) -> int:
    return count + -(-count // BLOCK)


def coded_block(values: np.ndarray) -> Tuple[int, np.ndarray, np.ndarray]:
    """Exponent and bytes of one block, and what they stand for."""
    exponent = int((values.view(np.uint32) & 0x7FFFFFFF).max()) >> 23
    if exponent == 255:
        return 255, np.zeros(values.size, np.int8), np.full(values.size, np.nan, np.float32)
    if exponent < 8:
        return 0, np.zeros(values.size, np.int8), np.zeros(values.size, np.float32)
    step = 2.0 ** (exponent - 133)
    q = np.clip(np.rint(values.astype(np.float64) / step), -127, 127)
    return exponent, q.astype(np.int8), (q * step).astype(np.float32)


def oracle(floats: np.ndarray, residual: Optional[np.ndarray] = None) -> Tuple[bytes, np.ndarray, np.ndarray]:
    """What is sent, what it stands for, and what is kept."""
    sent, stands_for, kept = b"", [np.empty(0, np.float32)], [np.empty(0, np.float32)]
    for start in range(0, floats.size, BLOCK):
        block = floats[start : start + BLOCK]
        old = np.zeros_like(block) if residual is None else residual[start : start + BLOCK]
        block = block + old
        exponent, q, means = coded_block(block)
        sent += bytes([exponent]) + q.tobytes()
        stands_for.append(means)
        kept.append(old if exponent == 255 else block - means)
    return sent, np.concatenate(stands_for), np.concatenate(kept)


def raw(values: np.ndarray, offset: int = 0) -> np.ndarray:
    """The bytes of ``values``, ``offset`` bytes past a boundary of 64, with 64 more around them."""
    room = np.full(values.nbytes + 192, 0xA5, np.uint8)
    start = -room.ctypes.data % 64 + 64 + offset
    view = room[start : start + values.nbytes]
    view[:] = values.reshape(-1).view(np.uint8)
    return view


def check_around(view: np.ndarray) -> None:
    room = view.base
    start = view.ctypes.data - room.ctypes.data
    assert (room[:start] == 0xA5).all() and (room[start + view.size :] == 0xA5).all(), "written outside of the result"


def encode(
    floats: np.ndarray, kernels: str, residual: Optional[np.ndarray] = None, offset: int = 0
) -> Tuple[bytes, bytes]:
    target, kept = raw(np.zeros(coded_bytes(floats.size), np.uint8), offset), None
    if residual is not None:
        kept = raw(residual, offset * 3 % 64)
    _core.encode_floats(MXINT8, target, raw(floats, offset * 5 % 64), kernels, kept)
    check_around(target)
    if kept is None:
        return target.tobytes(), b""
    check_around(kept)
    return target.tobytes(), kept.tobytes()


def decode(coded: bytes, count: int, kernels: str, offset: int = 0) -> np.ndarray:
    target = raw(np.zeros(count, np.float32), offset)
    _core.decode_floats(MXINT8, target, raw(np.frombuffer(coded, np.uint8), offset * 5 % 64), kernels)
    check_around(target)
    return target.copy().view(np.float32)


def sample(count: int, seed: int) -> np.ndarray:
    """Numbers of many magnitudes, some blocks of zeros, of denormals, and of what is not finite."""
    rng = np.random.default_rng([count, seed])
    floats = rng.standard_normal(count) * 2.0 ** np.repeat(rng.integers(-140, 120, count // BLOCK + 1), BLOCK)[:count]
    floats = floats.astype(np.float32)
    floats[rng.random(count) < 0.1] = 0
    floats[rng.random(count) < 0.004] = [np.nan, np.inf, -np.inf][seed % 3]
    return floats


@pytest.mark.parametrize("count", COUNTS)
def test_all_kernels_do_as_the_oracle_at_every_length_and_place(count: int) -> None:
    for seed in range(4):
        floats, old = sample(count, seed), (sample(count, seed + 100) * np.float32(0.01)).astype(np.float32)
        old = np.where(np.isfinite(old), old, 0).astype(np.float32)
        with np.errstate(all="ignore"):
            plain, means, _ = oracle(floats)
            fed, _, kept = oracle(floats, old)
        for kernels in KERNELS:
            offset = (count * 7 + seed) % 64
            assert encode(floats, kernels, None, offset) == (plain, b"")
            assert encode(floats, kernels, old, offset) == (fed, kept.tobytes())
            assert np.array_equal(decode(plain, count, kernels, offset), means, equal_nan=True)


@given(values=st.lists(st.floats(width=32, allow_nan=True), max_size=70), offset=st.integers(0, 63))
@settings(max_examples=150)
def test_any_floats(values: List[float], offset: int) -> None:
    floats = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        sent, means, _ = oracle(floats)
    for kernels in KERNELS:
        assert encode(floats, kernels, None, offset)[0] == sent
        assert np.array_equal(decode(sent, floats.size, kernels, offset), means, equal_nan=True)


def test_a_few_by_hand() -> None:
    """So that the oracle is held against something too: 1.0 has exponent 127, and steps of 2^-6."""
    values = np.array([1.0, -1.0, 0.5, 127 / 64, -127.9 / 64, 0.0078, 0.0079, -0.0], np.float32)
    whole, bits = [64, -64, 32, 127, -127, 0, 1, 0], bytes([127])
    for kernels in KERNELS:
        sent = encode(values, kernels)[0]
        assert sent[:1] == bits and np.frombuffer(sent[1:], np.int8).tolist() == whole
    for greatest, exponent in [(2.0**-119, 8), (2.0**-119 * 0.999, 0), (3.4e38, 254), (np.inf, 255), (np.nan, 255)]:
        assert encode(np.array([0, greatest], np.float32), KERNELS[-1])[0][0] == exponent


@pytest.mark.parametrize("kernels", KERNELS)
def test_what_was_decoded_is_coded_without_loss(kernels: str) -> None:
    for seed in range(8):
        floats = sample(3000, seed)
        with np.errstate(all="ignore"):
            means = oracle(floats)[1]
        sent, kept = encode(means, kernels, np.zeros_like(means))
        assert np.array_equal(decode(sent, means.size, kernels), means, equal_nan=True)
        assert not np.frombuffer(kept, np.float32).any()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("divisor", "finish"), [(1, False), (3, False), (1, True), (4, True), (3, True)])
def test_sums_are_float32_and_finished_once(count: int, divisor: int, finish: bool) -> None:
    own, theirs = sample(count, 1), sample(count, 2)
    old = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    with np.errstate(all="ignore"):
        sent, means, _ = oracle(theirs)
        total = own + means if divisor == 1 else (own + means) / np.float32(divisor)
        _, rounded, kept = oracle(total, old)
    want = rounded if finish else total
    for kernels in KERNELS:
        target, residual = raw(np.zeros(count, np.float32), 4), raw(old, 8)
        _core.add_encoded(
            MXINT8, target, raw(own), raw(np.frombuffer(sent, np.uint8), 1), divisor, finish, kernels, residual
        )
        check_around(target)
        check_around(residual)
        assert np.array_equal(target.copy().view(np.float32), want, equal_nan=True)
        assert residual.tobytes() == (kept if finish else old).tobytes()


def test_in_place_and_without_a_name() -> None:
    own = np.arange(100, dtype=np.float32)
    theirs = np.frombuffer(oracle(np.full(100, 2.0, np.float32))[0], np.uint8)
    for kernels in (*KERNELS, None):
        total = own.copy()
        _core.add_encoded(MXINT8, total.view(np.uint8), total.view(np.uint8), theirs, 2, False, kernels)
        assert (total == (own + 2) / 2).all()


def test_what_the_bindings_refuse() -> None:
    floats, coded = np.zeros(160, np.uint8), np.zeros(42, np.uint8)
    _core.encode_floats(MXINT8, coded, floats)
    with pytest.raises(ValueError, match="do not go with"):
        _core.encode_floats(MXINT8, coded[:41], floats)
    with pytest.raises(ValueError, match="residual"):
        _core.encode_floats(MXINT8, coded, floats, None, floats[:-4])
