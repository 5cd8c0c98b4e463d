"""Checks that all ranks have the same of what must be the same; all ranks raise the same error."""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import Any, List, Sequence

from ddl.adapter.rank_prefix import naming_rank
from ddl.communicator import Communicator
from ddl.errors import InvalidArgument

__all__ = ["check_consistent"]


@naming_rank
def check_consistent(
    communicator: Communicator, what: str, lines: Sequence[str], advice: str, mistake: str = "", own: Any = None
) -> List[Any]:
    """Raise ``InvalidArgument``, on all ranks, unless all have the same ``lines`` and none has a ``mistake``.

    Collective, blocking. The error begins with ``what`` and shows the first line that differs. Returns every rank's
    ``own``, plain data, which travels along.
    """
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    answers = communicator.allgather_object([digest, mistake, own])
    for rank, (_, wrong, _) in enumerate(answers):
        if wrong:
            raise InvalidArgument(f"{what}: on rank {rank}, {wrong}")
    odd = [rank for rank, (theirs, _, _) in enumerate(answers) if theirs != answers[0][0]]
    if odd:
        everybody: List[List[str]] = communicator.allgather_object(list(lines))
        pairs = zip_longest(everybody[0], everybody[odd[0]], fillvalue="nothing")
        expected, other = next((expected, other) for expected, other in pairs if expected != other)
        raise InvalidArgument(f"{what}: on rank 0 there is {expected}; on rank {odd[0]} {other}. {advice}")
    return [own for _, _, own in answers]
