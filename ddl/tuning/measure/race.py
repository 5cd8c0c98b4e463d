"""Compares candidates on real ranks, in rounds in which each runs in turn.

Each candidate has its own communicator, which runs everything in that way. The ranks exchange their times (turns.py),
so all of them decide the same. Several small calls are timed together.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence

import numpy as np

from ddl import clock
from ddl.communicator import Communicator
from ddl.plan.ir import Collective
from ddl.reduce_op import Max
from ddl.tuning.candidates import Candidate, worth_trying
from ddl.tuning.choose import better_half
from ddl.tuning.measure.timed_arrays import ON_HOST
from ddl.tuning.measure.timed_calls import COLLECTIVES, TimedCalls
from ddl.tuning.measure.turns import RaceOutcome, check_results, medians_of, settle, take_turns

__all__ = ["Race"]

_FEWEST, _MOST = 5, 200  #: rounds of a series
_FINALISTS, _MOST_BEFORE = 3, 16  #: candidates in the last series; most rounds of the first series before it
_LEAST_CALLS = 2 * (3 + 2 * _FEWEST)  #: calls that a decision between two candidates takes
_BLOCK, _MOST_CALLS = 1e-3, 256  #: calls are timed together for so many seconds, but at most so many


class Race:
    """Measures ``among`` over the ranks of ``control``. Every method is collective and blocks.

    ``device``: the GPU on which this rank's arrays are, or ``ON_HOST``.
    """

    def __init__(self, control: Communicator, among: Sequence[Candidate], begin: float, device: int = ON_HOST) -> None:
        self._control, self._device = control, device
        self._among = among
        self._topology = control.topology
        self._runners: Dict[int, Communicator] = {}
        self._begin = begin

    def elapsed(self) -> float:
        """Return the seconds since ``begin`` of ``clock.now``, the same on all ranks."""
        seconds = np.array([clock.now() - self._begin])
        self._control.allreduce_(seconds, op=Max)
        return float(seconds[0])

    def run(
        self, collective: Collective, nbytes: int, expected: Dict[int, float], share: float, most: float
    ) -> Optional[RaceOutcome]:
        """Return the fastest candidate for ``nbytes``, or None if that would take more than ``most`` seconds.

        ``expected``: seconds of a call, by candidate, where they are known; the measured ones are added. This takes
        about ``share`` seconds.
        """
        begin = self.elapsed()
        numbers, default = worth_trying(collective, self._topology, nbytes, self._among)
        if _LEAST_CALLS * expected.get(default, 0.0) > most:
            return None
        calls = TimedCalls(collective, self._control.rank, self._control.size, nbytes, self._device)
        usual = self._usual(calls)
        if _LEAST_CALLS * usual > most:
            return None
        # Spend half of the time on the most promising candidates: each takes about eight calls until it is out.
        numbers.sort(key=lambda number: (expected.get(number, usual), number))
        numbers = sorted({default, *numbers[: max(2, int(share / 16 / usual))]})
        check_results(self._control, {str(self._among[n]): self._runner(n) for n in numbers}, calls)
        together = int(min(max(_BLOCK / usual, 1), _MOST_CALLS))
        block = usual * together
        count = int(min(max(share / 16 / block / len(numbers), 2), _MOST_BEFORE))
        while len(numbers) > _FINALISTS:
            rounds = take_turns(self._control, self._runners_of(numbers), calls, count, together)
            expected.update(medians_of(rounds))
            numbers, count = list(better_half(rounds, default)), 2 * count
        remaining = share - (self.elapsed() - begin)
        count = int(min(max(remaining / (len(numbers) + 2) / block, _FEWEST), _MOST))
        outcome, medians = settle(self._control, self._runners_of(numbers), default, calls, count, together)
        expected.update(medians)
        return outcome

    def _usual(self, calls: TimedCalls) -> float:
        """Return the seconds of a call by the default: the best of two, after one that opens the connections."""
        seconds = np.zeros(3)
        for number in range(len(seconds)):
            begin = clock.now()
            calls.run(self._control)
            seconds[number] = clock.now() - begin
        self._control.allreduce_(seconds, op=Max)
        return float(seconds[1:].min())

    def _runners_of(self, numbers: Sequence[int]) -> Dict[int, Communicator]:
        return {number: self._runner(number) for number in numbers}

    def _runner(self, number: int) -> Communicator:
        if number not in self._runners:
            candidate = self._among[number]
            offered = [known for known in COLLECTIVES if candidate.suits(known, self._topology)]
            lines = {known: (candidate.line(known, self._topology),) for known in offered}
            runner = self._control._split(0, tuned=lines)
            assert runner is not None  # every rank has the same color
            self._runners[number] = runner
        return self._runners[number]
