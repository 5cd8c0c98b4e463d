"""What is done to trainings, again and again, and how long their ranks may stand still because of it."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, Sequence

from benchmarks.churn.idle import measure_idle
from benchmarks.churn.report import ChurnOutcome, PauseLimit, compare_steps, conclude, failures_noted
from benchmarks.churn.trainings import ChurnNetwork, ChurnTraining, LaunchedTraining, SeparateTraining
from ddl.tools.progress import Progress

__all__ = ["KILL", "RANKS", "SCENARIOS", "ChurnScenario"]

RANKS = 4  #: of a training, where nothing else is said
KILL = PauseLimit(p50=0.3, p99=1.0)  #: when a rank is killed
_WITH_STORE = PauseLimit(p99=2.0)  # when a rank is killed, and with it the job's store
_LAUNCHER = PauseLimit(p99=1.0)
_LARGE = 10**9  # bytes of state, of the scenario that is about joining
_EPOCHS = 3  # of the scenario that is about samples
_SAMPLES_PER_DEATH = 200  # of each epoch: about as many as are used meanwhile

#: Whom to kill, of processes in the order of their ranks.
Choice = Callable[[random.Random, Sequence[int]], int]


@dataclass
class ScenarioRun:
    """A scenario under way: it kills ranks ``times`` times, and notes the pauses in ``outcome``."""

    network: ChurnNetwork
    folder: Path
    times: int
    chance: random.Random
    outcome: ChurnOutcome

    def kill(self, training: ChurnTraining, choose: Choice, what: str, limit: PauseLimit = KILL) -> None:
        """Kill the rank that ``choose`` chooses, once all ranks that there are have gone on for a few steps."""
        pids = training.wait_for_ranks(2)
        self.outcome.add(what, training.kill_and_wait(pids, choose(self.chance, pids)), limit)

    def kill_and_join(self, training: ChurnTraining, ranks: int, choose: Choice, what: str, in_a_row: int) -> None:
        """Kill ranks, so many in a row; then await others in their place, and go on."""
        with Progress(self.times, after=10.0) as progress:
            for number in range(self.times):
                if number % in_a_row == 0:
                    training.wait_for_ranks(ranks)
                self.kill(training, choose, what)
                progress.step(f"{what}, {number + 1} of {self.times}")
            training.wait_for_ranks(ranks)

    def folders(self) -> Iterator[Path]:
        """Yield a folder for each of several trainings."""
        with Progress(self.times, after=10.0) as progress:
            for number in range(self.times):
                progress.step(f"training {number + 1} of {self.times}")
                folder = self.folder / str(number)
                folder.mkdir()
                yield folder


def _first(chance: random.Random, pids: Sequence[int]) -> int:
    return pids[0]


def _middle(chance: random.Random, pids: Sequence[int]) -> int:
    """Return neither the first nor the last, if there is another one."""
    return chance.choice(pids[1:-1] or pids[1:])


def _any(chance: random.Random, pids: Sequence[int]) -> int:
    return chance.choice(pids)


def _middle_of_four(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, _middle, "a rank is killed", 2)
        conclude(training, run.outcome, usage=True)


def _first_of_four(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, _first, "rank 0 is killed", 2)
        conclude(training, run.outcome)


def _either_of_two(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, 2) as training:
        run.kill_and_join(training, 2, _any, "a rank is killed", 1)
        conclude(training, run.outcome)


def _launcher(run: ScenarioRun) -> None:
    """Without ddlrun nobody starts others, so ranks are killed until rank 0 is alone."""
    for folder in run.folders():
        with LaunchedTraining(run.network, folder, RANKS) as training:
            training.wait_for_ranks(RANKS)
            run.outcome.add("ddlrun is killed", training.kill_launcher_and_watch(), _LAUNCHER)
            for _ in range(RANKS - 1):
                run.kill(training, _middle, "then a rank is killed")
            conclude(training, run.outcome)


def _store(run: ScenarioRun) -> None:
    """Each time, the next rank has the store, and is rank 0."""
    for folder in run.folders():
        with SeparateTraining(run.network, folder, RANKS) as training:
            training.wait_for_ranks(RANKS)
            for _ in range(RANKS - 1):
                run.kill(training, _first, "rank 0 is killed", _WITH_STORE)
            conclude(training, run.outcome)


def _epochs(run: ScenarioRun) -> None:
    network = dataclasses.replace(run.network, samples=_SAMPLES_PER_DEATH * run.times)
    with LaunchedTraining(network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, _any, "a rank is killed", 3)
        training.notes.wait_for_epoch(_EPOCHS, 30.0 + 5.0 * run.times)
        conclude(training, run.outcome, usage=True)


def _large(run: ScenarioRun) -> None:
    network = dataclasses.replace(run.network, frozen=_LARGE)
    with LaunchedTraining(network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, _any, "a rank is killed", 1)
        conclude(training, run.outcome)
        compare_steps(training, run.outcome)


def _idle(run: ScenarioRun) -> None:
    measure_idle(run.outcome, run.times)


@dataclass(frozen=True)
class ChurnScenario:
    """What people read, how often it is done by default, and what that is."""

    title: str
    times: int
    act: Callable[[ScenarioRun], None]

    def run(self, network: ChurnNetwork, folder: Path, seed: int, times: int = 0) -> ChurnOutcome:
        """Do it so many times, or as often as by default."""
        outcome = ChurnOutcome(self.title)
        with failures_noted(outcome):
            self.act(ScenarioRun(network, folder, times or self.times, random.Random(seed), outcome))
        return outcome


#: By their names for the command line.
SCENARIOS: Dict[str, ChurnScenario] = {
    "middle": ChurnScenario("four ranks: one in the middle is killed", 100, _middle_of_four),
    "first": ChurnScenario("four ranks: rank 0 is killed", 40, _first_of_four),
    "ddlrun": ChurnScenario("four ranks: ddlrun is killed, and then ranks", 6, _launcher),
    "store": ChurnScenario("four ranks without ddlrun: rank 0, which has the store, is killed", 6, _store),
    "two": ChurnScenario("two ranks: either is killed", 20, _either_of_two),
    "large": ChurnScenario("four ranks with 1 GB of weights: any is killed, and another one joins", 10, _large),
    "idle": ChurnScenario("two ranks of an elastic job: nothing happens", 5, _idle),
    "epochs": ChurnScenario("four ranks: any is killed, over three epochs or more", 100, _epochs),
}
