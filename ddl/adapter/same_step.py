"""Adds the number of a rank's step to what is reduced anyway: if ranks are in different steps, all notice it at once.

A script may catch an exception on one rank in the middle of a step and go on with the next step. Its next arrays may
look like those that the other ranks are about to reduce. They would be combined with them, although they belong to
another step. So each rank writes the number of its step into a few elements that are reduced along with its arrays: bit
by bit, and for each bit a pair of elements, of which one is 1 and the other 0. Where ranks have the same bit, one of
the two is not zero afterwards. Where bits differ, both are not zero after a sum, an average or a maximum, and both are
zero after a product or a minimum. Rounding keeps zero and not zero apart, in every type that has more than one byte.
(256 ones of one byte could add up to 0.)
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple

import numpy as np

from ddl.communicator import Communicator
from ddl.errors import InvalidState
from ddl.plan.step_text import ranks_text

__all__ = ["ELEMENTS", "StepElements", "StepNumber", "differ", "elements_of", "who_is_apart"]

_BITS = 16
_PLACES = np.arange(_BITS)
ELEMENTS = 2 * _BITS  #: that say one number


def elements_of(number: int) -> np.ndarray:
    """Return the elements, zeros and ones, that say the lowest 16 bits of ``number``."""
    bits = number >> _PLACES & 1
    return np.concatenate([bits, 1 - bits])


def differ(elements: np.ndarray) -> bool:
    """Return whether ranks have said different numbers; ``elements`` after the reduction, the same on all ranks."""
    nonzero = elements != 0
    return bool((nonzero[:_BITS] == nonzero[_BITS:]).any())


class StepNumber(NamedTuple):
    """What one rank says: a number, and what it means, for an error."""

    number: int
    text: str


class StepElements:
    """The elements that say a number. If a type of ``kinds`` fits, they have it, and can lie with those arrays."""

    def __init__(self, kinds: Iterable[np.dtype]) -> None:
        fit = [kind for kind in kinds if kind.kind in "fiu" and kind.itemsize > 1]
        self.array = np.zeros(ELEMENTS, fit[0] if fit else np.float32)

    def write(self, number: int) -> None:
        """Say the number."""
        self.array[:] = elements_of(number)

    def differ(self) -> bool:
        """Return whether ranks have said different numbers: the same on all ranks, after the reduction."""
        return differ(self.array)


def who_is_apart(communicator: Communicator, what: str, own: StepNumber, advice: str) -> InvalidState:
    """Ask the ranks which step they are in, and return the error that says so. Collective, blocking.

    All ranks call it, as all have found that their numbers differ.
    """
    places: Dict[str, List[int]] = {}
    for rank, text in enumerate(communicator.allgather_object(own.text)):
        places.setdefault(text, []).append(rank)
    listed = "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in places.items())
    return InvalidState(f"{communicator.who} {what}: ranks are not in step ({listed}). {advice}")
