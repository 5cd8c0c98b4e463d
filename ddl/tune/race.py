"""Candidates against one another, on real ranks: rounds in which each runs in turn, and what comes of them.

Each candidate has a communicator of its own, which runs everything that one way. A candidate's time in a round is that
of the slowest rank: times are exchanged (a maximum over ranks) before anything is decided by them, so all ranks decide
alike. Calls follow a barrier; small ones are timed several at a time.
"""

from __future__ import annotations

import statistics
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from ddl.communicator import Communicator
from ddl.errors import InternalError
from ddl.plan.ir import Collective
from ddl.reduce_op import Max
from ddl.tune.calls import COLLECTIVES, Calls
from ddl.tuning.candidates import Candidate, worth_trying
from ddl.tuning.choose import best, better_half, choose

__all__ = ["Outcome", "Race"]

_FEWEST, _MOST = 5, 200  #: rounds of a series
_FINALISTS, _MOST_BEFORE = 3, 16  #: how many run a series; rounds of the first of those that halve the field
_LEAST_CALLS = 2 * (3 + 2 * _FEWEST)  #: of two candidates, before one can be chosen
_BLOCK, _MOST_CALLS = 1e-3, 256  #: seconds for which, but how many at most, calls are timed together


class Outcome(NamedTuple):
    """Who won at one size, and the medians of the rounds that decided it."""

    chosen: int
    seconds: float
    default: int
    default_seconds: float


class Race:
    """Measures ``among`` over the ranks of ``control``. Every method is collective and blocks."""

    def __init__(self, control: Communicator, among: Sequence[Candidate]) -> None:
        self._control = control
        self._among = among
        self._topology = control._group.topology
        self._runners: Dict[int, Communicator] = {}
        self._begin = time.perf_counter()

    def elapsed(self) -> float:
        """Return the seconds since the race began, the same on all ranks."""
        seconds = np.array([time.perf_counter() - self._begin])
        self._control.allreduce_(seconds, op=Max)
        return float(seconds[0])

    def run(
        self, collective: Collective, nbytes: int, expected: Dict[int, float], share: float, most: float
    ) -> Optional[Outcome]:
        """Find the fastest candidate for ``nbytes``; None if that takes more than ``most`` seconds.

        ``expected``: seconds of a call, by candidate, or nothing of some; what was seen is entered there. It takes
        about ``share`` seconds.
        """
        begin = self.elapsed()
        numbers, default = worth_trying(collective, self._topology, nbytes, self._among)
        if _LEAST_CALLS * expected.get(default, 0.0) > most:
            return None
        calls = Calls(collective, self._control.rank, self._control.size, nbytes)
        usual = self._usual(calls)
        if _LEAST_CALLS * usual > most:
            return None
        # The likely ones, for half of the time: until it is out a candidate costs about eight calls.
        numbers.sort(key=lambda number: (expected.get(number, usual), number))
        numbers = sorted({default, *numbers[: max(2, int(share / 16 / usual))]})
        self._check(collective, calls, numbers)
        together = int(min(max(_BLOCK / usual, 1), _MOST_CALLS))
        block = usual * together
        count = int(min(max(share / 16 / block / len(numbers), 2), _MOST_BEFORE))
        while len(numbers) > _FINALISTS:
            seen = self._rounds(calls, numbers, count, together)
            expected.update(_medians(seen))
            numbers, count = list(better_half(seen, default)), 2 * count
        left = share - (self.elapsed() - begin)
        count = int(min(max(left / (len(numbers) + 2) / block, _FEWEST), _MOST))
        first = second = self._rounds(calls, numbers, count, together)
        expected.update(_medians(first))
        if best(first, default) != default:
            second = self._rounds(calls, sorted({default, best(first, default)}), count, together)
        chosen, medians = choose(first, second, default), _medians(second)
        return Outcome(chosen, medians[chosen], default, medians[default])

    def _usual(self, calls: Calls) -> float:
        """Return the seconds of a call by the default, the better of two; one before them makes the connections."""
        seconds = np.zeros(3)
        for number in range(len(seconds)):
            begin = time.perf_counter()
            calls.run(self._control)
            seconds[number] = time.perf_counter() - begin
        self._control.allreduce_(seconds, op=Max)
        return float(seconds[1:].min())

    def _check(self, collective: Collective, calls: Calls, numbers: Sequence[int]) -> None:
        """Connect, and see that every candidate has the default's result. Raises ``InternalError`` on all ranks."""
        wanted = calls.result(self._control)
        wrong = np.array([not np.array_equal(calls.result(self._runner(n)), wanted) for n in numbers], np.int32)
        self._control.allreduce_(wrong, op=Max)
        if wrong.any():
            names = [str(self._among[number]) for number, bad in zip(numbers, wrong) if bad]
            raise InternalError(f"{collective.name.lower()}: results differ from the default's by {'; '.join(names)}")

    def _rounds(self, calls: Calls, numbers: Sequence[int], count: int, together: int) -> Dict[int, List[float]]:
        """Return the seconds of a call in each of ``count`` rounds, in which ``numbers`` take turns."""
        seconds = np.zeros((count, len(numbers)))
        for turn in range(count):
            for place in range(len(numbers)):
                at = (turn + place) % len(numbers)  # nobody always follows the same
                runner = self._runner(numbers[at])
                self._control.barrier()
                begin = time.perf_counter()
                for _ in range(together):
                    calls.run(runner)
                seconds[turn, at] = (time.perf_counter() - begin) / together
        self._control.allreduce_(seconds, op=Max)
        return {number: seconds[:, at].tolist() for at, number in enumerate(numbers)}

    def _runner(self, number: int) -> Communicator:
        if number not in self._runners:
            one = self._among[number]
            offered = [known for known in COLLECTIVES if one.suits(known, self._topology)]
            lines = {known: (one.line(known, self._topology),) for known in offered}
            made = self._control._split(0, None, lines)
            assert made is not None  # every rank has the same color
            self._runners[number] = made
        return self._runners[number]


def _medians(rounds: Dict[int, List[float]]) -> Dict[int, float]:
    return {number: statistics.median(seconds) for number, seconds in rounds.items()}
