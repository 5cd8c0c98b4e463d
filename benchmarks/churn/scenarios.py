"""What is done to trainings, again and again, and how long their ranks may stand still because of it.

Here ranks are killed or stopped. Scenarios of processes that join are in joins.py.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Dict

from benchmarks.churn.idle import measure_idle
from benchmarks.churn.joins import JOINS
from benchmarks.churn.launched import LaunchedTraining, SeparateTraining
from benchmarks.churn.process_group import measure_process_group
from benchmarks.churn.replaying import compare_replay
from benchmarks.churn.report import PauseLimit, conclude
from benchmarks.churn.scenario import (
    BETWEEN,
    DEADLINE,
    RANKS,
    TWICE,
    WITH_DEADLINE,
    ChurnScenario,
    ScenarioRun,
    anyone,
    first,
    middle,
)
from ddl.launch.job.elastic_hosts import LEAVE_GRACE

__all__ = ["SCENARIOS"]

_WITH_STORE = PauseLimit(p99=2.0)  # when a rank is killed, and with it the job's store
_LAUNCHER = PauseLimit(p99=1.0)
_STOPPED = 60.0  # seconds for which a rank is stopped once
_EPOCHS = 3  # of the scenario that is about samples
_SAMPLES_PER_DEATH = 200  # of each epoch: about as many as are used meanwhile


def _middle_of_four(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, middle, "a rank is killed", 2)
        conclude(training, run.outcome, usage=True)


def _first_of_four(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, first, "rank 0 is killed", 2)
        conclude(training, run.outcome)


def _either_of_two(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, 2) as training:
        run.kill_and_join(training, 2, anyone, "a rank is killed", 1)
        conclude(training, run.outcome)


def _launcher(run: ScenarioRun) -> None:
    """Without ddlrun nobody starts others, so ranks are killed until rank 0 is alone."""
    for folder in run.folders():
        with LaunchedTraining(run.network, folder, RANKS) as training:
            training.wait_for_ranks(RANKS)
            generation, (ddlrun,) = training.notes.newest, training.started
            run.outcome.add("ddlrun is killed", training.kill_and_watch(ddlrun.pid), _LAUNCHER)
            if training.notes.newest != generation:
                run.outcome.problems.append(f"ranks have changed when ddlrun was killed: {training.notes.now}")
            for _ in range(RANKS - 1):
                run.kill(training, middle, "then a rank is killed")
            conclude(training, run.outcome)


def _store(run: ScenarioRun) -> None:
    """Each time, the next rank has the store, and is rank 0."""
    for folder in run.folders():
        with SeparateTraining(run.network, folder, RANKS) as training:
            training.wait_for_ranks(RANKS)
            for _ in range(RANKS - 1):
                run.kill(training, first, "rank 0 is killed", _WITH_STORE)
            conclude(training, run.outcome)


def _again(run: ScenarioRun) -> None:
    with LaunchedTraining(run.network, run.folder, RANKS) as training:
        what = "a second rank is killed"
        for _ in run.each_time(what):
            pids = training.wait_for_ranks(RANKS)
            seconds = run.chance.uniform(0.0, BETWEEN)
            run.outcome.add(what, training.kill_in_turn(pids, run.chance.sample(pids, 2), seconds), TWICE)
        training.wait_for_ranks(RANKS)
        conclude(training, run.outcome)


def _frozen(run: ScenarioRun) -> None:
    """A rank that was stopped must find out that it is left out, and end by itself, before ddlrun ends it.

    If it was stopped while it wrote to the others' memory, they end it when they go on.
    """
    with LaunchedTraining(run.network, run.folder, RANKS, options=WITH_DEADLINE) as training:
        for number in run.each_time("a rank is stopped"):
            pids = training.wait_for_ranks(RANKS)
            pid, end = anyone(run.chance, pids), time.monotonic() + (_STOPPED if number == 0 else 0.0)
            pause = training.freeze_and_wait(pids, pid)
            run.outcome.add(f"a rank is stopped, from {DEADLINE:g} s on", pause - DEADLINE, TWICE)
            training.notes.wait_until(end)
            moment = training.thaw(pid)
            how = training.wait_for_end(pid)
            run.outcome.add("it goes on, until it has ended", time.monotonic() - moment, PauseLimit())
            if "exited with status 1" not in how and not training.was_ended_amid_a_store(pid):
                run.outcome.problems.append(
                    f"a rank that was stopped did not end by itself in {LEAVE_GRACE:g} s, more than ddlrun waits: {how}"
                )
        training.wait_for_ranks(RANKS)
        conclude(training, run.outcome)


def _epochs(run: ScenarioRun) -> None:
    network = dataclasses.replace(run.network, samples=_SAMPLES_PER_DEATH * run.times, deterministic=True)
    with LaunchedTraining(network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, anyone, "a rank is killed", 3)
        training.notes.wait_for_epoch(_EPOCHS, 30.0 + 5.0 * run.times)
        conclude(training, run.outcome, usage=True)
        compare_replay(training, run.outcome)


def _group(run: ScenarioRun) -> None:
    measure_process_group(run.outcome, run.times, run.chance)


def _idle(run: ScenarioRun) -> None:
    measure_idle(run.outcome, run.folder, run.times)


#: By their names for the command line.
SCENARIOS: Dict[str, ChurnScenario] = {
    "middle": ChurnScenario("four ranks: one in the middle is killed", 100, _middle_of_four),
    "first": ChurnScenario("four ranks: rank 0 is killed", 40, _first_of_four),
    "ddlrun": ChurnScenario("four ranks: ddlrun is killed, and then ranks", 6, _launcher),
    "store": ChurnScenario("four ranks without ddlrun: rank 0, which has the store, is killed", 6, _store),
    "two": ChurnScenario("two ranks: either is killed", 20, _either_of_two),
    "again": ChurnScenario("four ranks: while they form anew after a death, a second one is killed", 20, _again),
    "frozen": ChurnScenario("four ranks: one is stopped, and goes on when the others have left it out", 5, _frozen),
    **JOINS,
    "group": ChurnScenario("three replicas of torchft's kind: one is killed", 20, _group),
    "idle": ChurnScenario("two jobs of two ranks, one of them elastic: nothing happens", 10, _idle),
    "epochs": ChurnScenario("four ranks: any is killed, over three epochs or more", 100, _epochs),
}
