"""Compares communicators of the same ranks that run collectives in different ways: each runs in turn.

A communicator's time in a round is the time of its slowest rank. The ranks exchange their times (a maximum over ranks),
so that all decide by the same ones. A barrier precedes the calls.
"""

from __future__ import annotations

import statistics
from typing import Dict, List, Mapping, NamedTuple, Protocol, Tuple

import numpy as np

from ddl import clock
from ddl.communicator import Communicator
from ddl.errors import InternalError
from ddl.reduce_op import Max
from ddl.tuning.choose import Rounds, best, choose
from ddl.tuning.measure.timed_calls import TimedCalls

__all__ = ["RaceOutcome", "Timed", "check_results", "medians_of", "settle", "take_turns"]


class Timed(Protocol):
    """An operation that is timed."""

    def run(self, world: Communicator) -> None:
        """Do it once. Collective, blocking."""


class RaceOutcome(NamedTuple):
    """The winner at one size, and the medians of the rounds that decided it."""

    chosen: int
    seconds: float
    default: int
    default_seconds: float


def check_results(control: Communicator, runners: Mapping[str, Communicator], calls: TimedCalls) -> None:
    """Open connections, and check that all runners have the result of ``control``.

    Collective. Raises ``InternalError`` on all ranks.
    """
    wanted = calls.result(control)
    wrong = np.array([not np.array_equal(calls.result(runner), wanted) for runner in runners.values()], np.int32)
    control.allreduce_(wrong, op=Max)
    if wrong.any():
        names = "; ".join(name for name, bad in zip(runners, wrong) if bad)
        raise InternalError(f"{calls.collective.name.lower()}: results differ from the default's by {names}")


def take_turns(
    control: Communicator, runners: Mapping[int, Communicator], calls: Timed, count: int, together: int
) -> Dict[int, List[float]]:
    """Return the seconds of a call by each runner in each of ``count`` rounds. Collective.

    In a round, each runner makes ``together`` calls; the mean of their seconds is returned.
    """
    seconds = np.zeros((count, len(runners)))
    order = list(runners.values())
    for turn in range(count):
        for place in range(len(order)):
            at = (turn + place) % len(order)  # so that a runner does not always follow the same other one
            control.barrier()
            begin = clock.now()
            for _ in range(together):
                calls.run(order[at])
            seconds[turn, at] = (clock.now() - begin) / together
    control.allreduce_(seconds, op=Max)
    return {number: seconds[:, at].tolist() for at, number in enumerate(runners)}


def settle(
    control: Communicator, runners: Mapping[int, Communicator], default: int, calls: Timed, count: int, together: int
) -> Tuple[RaceOutcome, Dict[int, float]]:
    """Return the outcome, and the medians of the first series.

    If the best of the first series is not the default, a second series between the two decides. Collective. A series
    has ``count`` rounds.
    """
    first = second = take_turns(control, runners, calls, count, together)
    leader = best(first, default)
    if leader != default:
        finalists = {number: runners[number] for number in sorted({default, leader})}
        second = take_turns(control, finalists, calls, count, together)
    chosen, medians = choose(first, second, default), medians_of(second)
    return RaceOutcome(chosen, medians[chosen], default, medians[default]), medians_of(first)


def medians_of(rounds: Rounds) -> Dict[int, float]:
    """Return the median of each candidate's seconds."""
    return {number: statistics.median(seconds) for number, seconds in rounds.items()}
