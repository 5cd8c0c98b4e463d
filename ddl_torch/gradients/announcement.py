"""What a rank tells the others with every bucket, in its last elements, which are reduced like gradients.

* Its *presence*: whether it trains, evaluates in a closure of ``step``, or has joined.
* Whether it *abandons* the round: an exception has ended its backward pass, so its gradients are not all there.
* How many *steps* it has taken with averages of this optimizer. Ranks with different numbers have different weights.

Elements may be of float16, and are summed or averaged over any number of ranks. After that, only whether an element is
zero is exact. The number of steps is written so that this is enough (ddl/adapter/same_step.py). If numbers differ,
ranks then ask one another for them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Dict, List, Sequence

import numpy as np
import torch

import ddl
from ddl.adapter import same_step

__all__ = ["Announcement", "ELEMENTS", "RoundSummary", "Presence", "merge", "who_is_apart"]

_STEPS = 2  # where the number of steps begins
ELEMENTS = _STEPS + same_step.ELEMENTS  #: of an announcement


class Presence(enum.IntEnum):
    """Why a rank takes part in a round. A round has the greatest of all ranks' values."""

    JOINED = 0  # only because others go on
    TRAINING = 1
    EVALUATING = 2  # training, in a closure of ``step``: the average of the loss follows the round


@dataclass(frozen=True)
class RoundSummary:
    """What all ranks together have said: the same on each of them."""

    presence: Presence
    abandoned: bool  # by one of them
    in_step: bool  # all have taken the same number of steps


@dataclass(frozen=True)
class Announcement:
    """What one rank says."""

    presence: Presence
    steps: int
    abandoned: bool

    def write(self, elements: torch.Tensor, size: int) -> None:
        """Write it to the last elements of a bucket, for ``size`` ranks."""
        elements.zero_()
        if self.presence is not Presence.JOINED:
            elements[0] = 1 if self.presence is Presence.TRAINING else 2 * size
            elements[1] = float(self.abandoned)
            elements[_STEPS:] = torch.from_numpy(same_step.elements_of(self.steps))

    @staticmethod
    def read(elements: Sequence[float], op: ddl.ReduceOp, size: int) -> RoundSummary:
        """Return what those elements say after the reduction."""
        evaluating = elements[0] > 1.5 * (1 if op == ddl.Average else size)
        presence = Presence.EVALUATING if evaluating else Presence.TRAINING if elements[0] else Presence.JOINED
        return RoundSummary(presence, bool(elements[1]), _in_step(presence, elements))

    def bytes(self) -> List[int]:
        """Return it for a reduction by ``Max``, in a round that has no bucket: ``ELEMENTS`` numbers up to 255."""
        if self.presence is Presence.JOINED:
            return [0] * ELEMENTS
        return [self.presence, self.abandoned, *same_step.elements_of(self.steps).tolist()]

    @staticmethod
    def from_bytes(greatest: Sequence[int]) -> RoundSummary:
        """Return what the greatest of all ranks' ``bytes`` say."""
        presence = Presence(greatest[0])
        return RoundSummary(presence, bool(greatest[1]), _in_step(presence, greatest))


def _in_step(presence: Presence, elements: Sequence[float]) -> bool:
    """Return whether the ranks that have not joined have said the same number of steps."""
    return presence is Presence.JOINED or not same_step.differ(np.asarray(elements[_STEPS:]))


def merge(heard: Sequence[RoundSummary]) -> RoundSummary:
    """Return what the buckets of one round say together."""
    return RoundSummary(heard[0].presence, any(each.abandoned for each in heard), all(each.in_step for each in heard))


def who_is_apart(communicator: ddl.Communicator, own: Announcement) -> ddl.Error:
    """Ask the ranks why a round is worth nothing, and return the error that says so. Collective, blocking.

    All ranks call it, as all have heard that a rank has abandoned the round, or that they are not in step.
    """
    joined = own.presence is Presence.JOINED
    told = list(enumerate(communicator.allgather_object([own.steps, own.abandoned, joined])))
    where = communicator.who
    gone = [rank for rank, (_, abandoned, _) in told if abandoned]
    if gone:
        return ddl.InvalidState(
            f"{where} there are no averages in step {own.steps + 1}, and no rank may take it: an exception has ended "
            f"the backward pass on {_listed(gone)}. Catch this error there as well and call optimizer.zero_grad() to "
            "leave the batch out on all ranks, or find out before backward() if a batch is bad: docs/training_loop.md, "
            '"Leaving a batch out"'
        )
    by_steps: Dict[int, List[int]] = {}
    for rank, (steps, _, has_joined) in told:
        if not has_joined:
            by_steps.setdefault(steps, []).append(rank)
    counts = ", ".join(f"{_listed(ranks)}: {steps}" for steps, ranks in sorted(by_steps.items()))
    return ddl.InvalidState(
        f"{where} ranks have taken different numbers of steps with this optimizer, so their weights differ ({counts}). "
        "Some have left out a step that others took (`continue` after an exception, say). Go on from a checkpoint; to "
        'leave a batch out on all ranks: docs/training_loop.md, "Leaving a batch out"'
    )


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{', …' if len(ranks) > 8 else ''}"
