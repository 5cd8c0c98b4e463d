"""Compares weights over the ranks before the first step: ranks that begin with others train models that never meet.

That happens where a script forgets to broadcast the weights, and nothing else shows it: gradients are averaged, and the
loss goes down.
"""

from __future__ import annotations

import logging
from typing import Optional, Sequence

import numpy as np

from ddl.communicator import Communicator
from ddl.store.rank_names import FEW, name_ranks

__all__ = ["differing_weights", "warn"]

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
    others = name_ranks([rank for rank in range(communicator.size) if of_first[rank] != of_first[0]], FEW)
    more = f", and {odd.size - 1} more," if odd.size > 1 else ""
    verb = "have" if others.startswith("ranks") else "has"
    return (
        f"the ranks begin with different weights, so each would train another model: {others} {verb} another "
        f"{names[first]!r}{more} than rank 0. {advice}"
    )


def warn(communicator: Communicator, text: str) -> None:
    """Tell the user once, not on every rank."""
    if communicator.rank == 0:
        log.warning("%s %s", communicator.who, text)
