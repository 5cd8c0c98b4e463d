"""Compares weights over the ranks before the first step: ranks that begin with others train models that never meet.

That happens where a script forgets to broadcast the weights, and nothing else shows it: gradients are averaged, and the
loss goes down.
"""

from __future__ import annotations

import logging
from typing import Optional, Sequence

import numpy as np

from ddl.communicator import Communicator
from ddl.text.rank_names import FEW, name_ranks

__all__ = ["differing_rows", "differing_weights", "row_of_weights", "warn"]

log = logging.getLogger("ddl")

_BITS = (1 << 62) - 1  # of a digest: its negative is a number of 64 bits, too


def differing_weights(
    communicator: Communicator, names: Sequence[str], digests: Sequence[int], advice: str
) -> Optional[str]:
    """Return what is wrong if the ranks have different ``digests`` of the weights ``names``; the same on all ranks.

    A digest is any integer that different weights seldom have alike. ``advice``: how to make the weights the same.
    Collective, blocking: one small all-reduce, where all is well.
    """
    own = np.array([digest & _BITS for digest in digests], np.int64)
    greatest = communicator.allreduce(np.concatenate([own, -own]), op="max")
    odd = np.flatnonzero(greatest[: own.size] != -greatest[own.size :])
    if not odd.size:
        return None
    first = int(odd[0])
    of_first = communicator.allgather(own[first : first + 1])
    others = [rank for rank in range(communicator.size) if of_first[rank] != of_first[0]]
    return _text(names[first], odd.size, others, 0, advice)


def row_of_weights(rank: int, digests: Sequence[int]) -> np.ndarray:
    """Return what ``differing_rows`` compares of a rank: a row of integers of 64 bits."""
    return np.array([[rank, *(digest & _BITS for digest in digests)]], np.int64)


def differing_rows(table: np.ndarray, names: Sequence[str], advice: str) -> Optional[str]:
    """As ``differing_weights``, for who has gathered the rows of all ranks otherwise. Not collective."""
    weights = table[:, 1:]
    odd = np.flatnonzero((weights != weights[0]).any(axis=0))
    if not odd.size:
        return None
    first = int(odd[0])
    others = table[weights[:, first] != weights[0, first], 0].tolist()
    return _text(names[first], odd.size, others, int(table[0, 0]), advice)


def _text(name: str, count: int, others: Sequence[int], base: int, advice: str) -> str:
    """``others`` have another ``name`` than rank ``base``, which is the first of ``count`` that differ."""
    ranks = name_ranks(others, FEW)
    more = f", and {count - 1} more," if count > 1 else ""
    verb = "have" if ranks.startswith("ranks") else "has"
    return (
        f"the ranks begin with different weights, so each would train another model: {ranks} {verb} another "
        f"{name!r}{more} than rank {base}. {advice}"
    )


def warn(communicator: Communicator, text: str, teller: int = 0) -> None:
    """Tell the user once, not on every rank: rank ``teller`` does."""
    if communicator.rank == teller:
        log.warning("%s %s", communicator.who, text)
