"""Where a rank stands in its work, said with what is reduced anyway: ranks that stand elsewhere learn of it at once.

A script may catch an exception on one rank in the middle of a step and go on with the next one. Its next arrays can
look like those that the other ranks are about to reduce, and would be combined with them although they mean something
else. So each rank writes a number into a few elements that are reduced along with its arrays: bit by bit, and for each
bit a pair of elements of which one is 1 and the other 0. Where ranks have the same bit, exactly one of the two is not
zero afterwards. Where bits differ, both are not zero after a sum, an average or a maximum, and both are zero after a
product or a minimum. Whether an element is zero survives rounding, in every type that has more than one byte: of those,
256 ones could add up to 0.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple

import numpy as np

from ddl.communicator import Communicator
from ddl.errors import InvalidState
from ddl.plan.words import ranks_text

__all__ = ["Standing", "Told", "who_is_apart"]

_BITS = 16
_PLACES = np.arange(_BITS)


class Standing(NamedTuple):
    """What one rank says: a number, of which ranks compare the lowest 16 bits, and what it means, for an error."""

    number: int
    text: str


class Told:
    """The elements that say a number, of a type of ``kinds`` if one of these is fit, so that they lie with those."""

    def __init__(self, kinds: Iterable[np.dtype]) -> None:
        fit = [kind for kind in kinds if kind.kind in "fiu" and kind.itemsize > 1]
        self.elements = np.zeros(2 * _BITS, fit[0] if fit else np.float32)

    def write(self, number: int) -> None:
        """Say the number."""
        bits = number >> _PLACES & 1
        self.elements[:_BITS] = bits
        self.elements[_BITS:] = 1 - bits

    def differs(self) -> bool:
        """Return whether ranks have said different numbers: the same on all ranks, after the reduction."""
        there = self.elements != 0
        return bool((there[:_BITS] == there[_BITS:]).any())


def who_is_apart(communicator: Communicator, what: str, own: Standing, advice: str) -> InvalidState:
    """Ask the ranks where they stand, and return the error that says so. Collective, blocking.

    All ranks call it, as all have found that they stand in different places.
    """
    places: Dict[str, List[int]] = {}
    for rank, text in enumerate(communicator.allgather_object(own.text)):
        places.setdefault(text, []).append(rank)
    listed = "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in places.items())
    return InvalidState(f"{communicator.who} {what}: ranks are not in step ({listed}). {advice}")
