"""What a scenario is, and what all of them do: kill ranks, note the pauses, and go on when others have joined."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, Sequence

from benchmarks.churn.report import ChurnOutcome, PauseLimit, failures_noted
from benchmarks.churn.trainings import ChurnNetwork, ChurnTraining
from ddl.tools.progress import Progress

__all__ = ["BETWEEN", "DEADLINE", "KILL", "RANKS", "TWICE", "WITH_DEADLINE"]
__all__ += ["Choice", "ChurnScenario", "ScenarioRun", "anyone", "first", "middle"]

RANKS = 4  #: of a training, where nothing else is said
KILL = PauseLimit(p50=0.3, p99=1.0)  #: when a rank is killed
TWICE = PauseLimit(p99=2.0)  #: when two are killed, and beyond the deadline when a rank stands still
BETWEEN = 0.04  #: seconds: when a second one is killed so soon, the others come to an agreement on the first
DEADLINE = 8.0  #: seconds after which ranks leave out one that stands still, in a job with these options of ddlrun
WITH_DEADLINE = ("--timeout", f"{DEADLINE:g}")

#: Whom to kill, of processes in the order of their ranks.
Choice = Callable[[random.Random, Sequence[int]], int]


def first(chance: random.Random, pids: Sequence[int]) -> int:
    """Return rank 0."""
    return pids[0]


def middle(chance: random.Random, pids: Sequence[int]) -> int:
    """Return neither the first nor the last, if there is another one."""
    return chance.choice(pids[1:-1] or pids[1:])


def anyone(chance: random.Random, pids: Sequence[int]) -> int:
    """Return any rank."""
    return chance.choice(pids)


@dataclass
class ScenarioRun:
    """A scenario under way: it kills ranks ``times`` times, and notes the pauses in ``outcome``.

    state: bytes of weights, where the scenario is about a large state.
    """

    network: ChurnNetwork
    folder: Path
    times: int
    chance: random.Random
    outcome: ChurnOutcome
    state: int

    def each_time(self, what: str) -> Iterator[int]:
        """Yield the number of each time; ``what`` is for people who wait."""
        with Progress(self.times, after=10.0) as progress:
            for number in range(self.times):
                progress.step(f"{what}, {number + 1} of {self.times}")
                yield number

    def kill(self, training: ChurnTraining, choose: Choice, what: str, limit: PauseLimit = KILL) -> None:
        """Kill the rank that ``choose`` chooses, once all ranks that there are have gone on for a few steps."""
        pids = training.wait_for_ranks(2)
        self.outcome.add(what, training.kill_and_wait(pids, choose(self.chance, pids)), limit)

    def kill_and_join(self, training: ChurnTraining, ranks: int, choose: Choice, what: str, in_a_row: int) -> None:
        """Kill ranks, so many in a row; then await others in their place, and go on."""
        for number in self.each_time(what):
            if number % in_a_row == 0:
                training.wait_for_ranks(ranks)
            self.kill(training, choose, what)
        training.wait_for_ranks(ranks)

    def folders(self) -> Iterator[Path]:
        """Yield a folder for each of several trainings."""
        for number in self.each_time("training"):
            folder = self.folder / str(number)
            folder.mkdir()
            yield folder


@dataclass(frozen=True)
class ChurnScenario:
    """What people read, how often it is done by default, and what that is."""

    title: str
    times: int
    act: Callable[[ScenarioRun], None]

    def run(self, network: ChurnNetwork, folder: Path, seed: int, times: int = 0, state: int = 10**9) -> ChurnOutcome:
        """Do it so many times, or as often as by default. ``state``: see ``ScenarioRun``."""
        outcome = ChurnOutcome(self.title)
        with failures_noted(outcome):
            self.act(ScenarioRun(network, folder, times or self.times, random.Random(seed), outcome, state))
        return outcome
