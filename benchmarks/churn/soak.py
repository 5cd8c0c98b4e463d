"""A long training whose ranks die, join, leave and stand still by chance: does it go on, and does nothing grow?"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Callable, List, Tuple

from benchmarks.churn.launched import LaunchedTraining
from benchmarks.churn.report import ChurnOutcome, PauseLimit, conclude, failures_noted
from benchmarks.churn.scenario import BETWEEN, DEADLINE, KILL, RANKS, TWICE, WITH_DEADLINE
from benchmarks.churn.trainings import ChurnNetwork
from ddl.tools.progress import Progress

__all__ = ["Soak"]

_OLD = 0.5  # from this part of the time on, rank 0 is spared: so a process gets old


class Soak:
    """A training of four ranks for so many seconds, and what is done to it. ``chance`` decides what, when and to whom.

    Pauses are seconds from a kill until all survivors have finished a step without the dead, and from the end of a rest
    until all ranks have finished a step. For a frozen rank they are counted from the deadline on.
    """

    def __init__(self, network: ChurnNetwork, folder: Path, seconds: float, chance: random.Random) -> None:
        self.outcome = ChurnOutcome(f"{seconds:g} s of deaths, joins, leaves and rests by chance")
        self.training = LaunchedTraining(network, folder, RANKS, list_hosts=True, options=WITH_DEADLINE, period=5.0)
        self._seconds = seconds
        self._chance = chance
        self._old = False

    def run(self) -> ChurnOutcome:
        """Let it take its course."""
        deeds: List[Tuple[Callable[[], None], int]] = [
            *((self._kill, 50), (self._kill_two, 15), (self._kill_again, 15), (self._kill_newcomer, 10)),
            *((self._change_slots, 14), (self._rest, 10), (self._freeze, 1)),
        ]
        functions, weights = zip(*deeds)
        with failures_noted(self.outcome), self.training, Progress(after=30.0, seconds=self._seconds) as progress:
            self.training.wait_for_ranks(RANKS)
            begin = time.monotonic()
            while time.monotonic() < begin + self._seconds:
                self._old = time.monotonic() > begin + _OLD * self._seconds
                (deed,) = self._chance.choices(functions, weights)
                deed()
                done = sum(map(len, self.outcome.pauses.values()))
                progress.step(f"{done} deeds, generation {self.training.notes.newest}")
                self._let_it_go_on()
            self.training.wait_for_ranks(self.training.slots, self.training.slots)
            conclude(self.training, self.outcome, usage=True)
        return self.outcome

    def _let_it_go_on(self) -> None:
        """Wait for a while, and until there are ranks enough for the next deed; others may be joining."""
        wait = time.monotonic() + self._chance.uniform(0.2, 4.0)
        least = self._chance.choice([2, self.training.slots - 1, self.training.slots])
        self.training.notes.wait(
            lambda: time.monotonic() > wait and len(self.training.notes.members()) >= least, f"{least} ranks"
        )

    def _victims(self, pids: List[int], count: int) -> List[int]:
        return self._chance.sample(pids[1:] if self._old else pids, min(count, len(pids) - 1))

    def _kill(self) -> None:
        pids = self.training.wait_for_ranks(2)
        (victim,) = self._victims(pids, 1)
        what = "rank 0 is killed" if victim == pids[0] else "a rank is killed"
        self.outcome.add(what, self.training.kill_and_wait(pids, victim), KILL)

    def _kill_two(self) -> None:
        pids = self.training.wait_for_ranks(2)
        self.outcome.add("two are killed at once", self.training.kill_and_wait(pids, *self._victims(pids, 2)), TWICE)

    def _kill_again(self) -> None:
        """Kill a second rank while the others come to an agreement on the first."""
        pids = self.training.wait_for_ranks(2)
        pause = self.training.kill_in_turn(pids, self._victims(pids, 2), self._chance.uniform(0.0, BETWEEN))
        self.outcome.add("a second is killed meanwhile", pause, TWICE)

    def _kill_newcomer(self) -> None:
        """Kill a rank, and then a process that is to join, at any moment of its start."""
        pids = self.training.wait_for_ranks(2)
        self.outcome.add("a rank, then a newcomer", self.training.kill_and_wait(pids, *self._victims(pids, 1)), KILL)
        self.training.notes.wait_until(time.monotonic() + self._chance.uniform(0.2, 4.0))
        coming = set(self.training.running()) - self.training.notes.latest.keys()
        for pid in sorted(coming)[:1]:
            self.training.kill(pid)

    def _change_slots(self) -> None:
        """Let a rank leave or come as planned, and at the next call take that back."""
        slots = RANKS if self.training.slots != RANKS else self._chance.choice([RANKS - 1, RANKS + 1])
        begin = time.monotonic()
        self.training.set_slots(slots)
        self.training.wait_until_settled()
        self.outcome.add("slots change, until all is done", time.monotonic() - begin, PauseLimit())

    def _rest(self) -> None:
        """Stop a rank for less than the deadline of operations: the others wait for it."""
        pids, generation = self.training.wait_for_ranks(2), self.training.notes.newest
        (pid,) = self._victims(pids, 1)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.2, 2.0))
        os.kill(pid, signal.SIGCONT)
        moment = time.monotonic()
        self.outcome.add("a rank has rested", self._next_step(moment, generation, pids), PauseLimit())

    def _next_step(self, moment: float, generation: int, pids: List[int]) -> float:
        """Wait until all ranks have finished a step after ``moment``, those of now or of a later generation."""
        notes = self.training.notes

        def done() -> bool:
            if notes.newest > generation:
                return bool(notes.members())
            return all(notes.latest[pid].moment > moment for pid in pids)

        notes.wait(done, f"a step after process {pids} rested")
        return time.monotonic() - moment

    def _freeze(self) -> None:
        """Stop a rank until the others have gone on without it, and then let it see that."""
        pids = self.training.wait_for_ranks(2)
        (pid,) = self._victims(pids, 1)
        pause = self.training.freeze_and_wait(pids, pid)
        self.outcome.add("a rank was frozen (from DDL_TIMEOUT on)", pause - DEADLINE, TWICE)
        self.training.thaw(pid)
