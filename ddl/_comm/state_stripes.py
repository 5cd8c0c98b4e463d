"""A state as bytes, cut into stripes: several members each send one to a process that joins."""

from __future__ import annotations

import hashlib
from typing import Callable, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from ddl import _core

__all__ = ["Piece", "digests", "gather", "stripe", "total_bytes"]

_BLOCK = 1 << 18  #: bytes


class Piece(NamedTuple):
    """A part of a state. ``read`` returns its bytes as they are now (uint8, one axis); a copy only where it must be."""

    size: int  #: bytes
    read: Callable[[], np.ndarray]


def total_bytes(pieces: Sequence[Piece]) -> int:
    """Return the bytes of all pieces."""
    return sum(piece.size for piece in pieces)


def stripe(total: int, part: int, parts: int) -> Tuple[int, int]:
    """Return where part ``part`` of ``parts`` begins and ends in ``total`` bytes."""
    return total * part // parts, total * (part + 1) // parts


def _cut(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[np.ndarray]:
    """Yield the bytes from ``start`` to ``stop`` of the pieces one after the other; only those pieces are read."""
    begin = 0
    for piece in pieces:
        low, high = max(start, begin), min(stop, begin + piece.size)
        if low < high:
            yield piece.read()[low - begin : high - begin]
        begin += piece.size


def gather(pieces: Sequence[Piece], start: int, copy: np.ndarray) -> None:
    """Fill ``copy`` (uint8) with the bytes from ``start`` on."""
    at = 0
    for data in _cut(pieces, start, start + len(copy)):
        _core.copy_bytes(copy[at : at + len(data)], data, True)  # past the caches: it is read later
        at += len(data)


def digests(pieces: Sequence[Piece], wanted: Sequence[int], parts: int) -> List[str]:
    """Return digests of the stripes ``wanted`` of ``parts``.

    They are the sums of the words of each block, hashed. They find errors of the network or of memory. They are no
    defence against somebody who wants them to be equal.
    """
    total = total_bytes(pieces)
    return [_digest(pieces, *stripe(total, part, parts)) for part in wanted]


def _digest(pieces: Sequence[Piece], start: int, stop: int) -> str:
    lines: List[bytes] = []
    for data in _cut(pieces, start, stop):
        for begin in range(0, len(data), _BLOCK):
            block = data[begin : begin + _BLOCK]
            rest = len(block) % 8
            words = np.frombuffer(block[: len(block) - rest], np.uint64)
            lines.append(words.sum(dtype=np.uint64).tobytes())
            lines.append(block[len(block) - rest :].tobytes())
    return hashlib.sha256(b"".join(lines)).hexdigest()
