"""Processes that join: with a large state, at the moment of a death, and where the others wait for them."""

from __future__ import annotations

import dataclasses
import time
from typing import Dict

from benchmarks.churn.launched import LaunchedTraining
from benchmarks.churn.report import PauseLimit, compare_followed, compare_steps, conclude
from benchmarks.churn.scenario import RANKS, ChurnScenario, ScenarioRun, anyone

__all__ = ["JOINS"]

_TRANSFER = PauseLimit(p99=0.5)  # when a process is killed that gets the state
_LATE = "what was to happen while process {} got the state came too late: it had just become a rank"
_TOGETHER = PauseLimit(p99=2.0)
_JOINING = 3  # processes at once
_CHANGES = 2  # that may bring them, and the end of a rank
_ENOUGH = 3  # ranks, of the scenario in which there are fewer for a while


def _large(run: ScenarioRun) -> None:
    network = dataclasses.replace(run.network, frozen=run.state)
    with LaunchedTraining(network, run.folder, RANKS) as training:
        run.kill_and_join(training, RANKS, anyone, "a rank is killed", 1)
        conclude(training, run.outcome)
        compare_steps(training, run.outcome)
        compare_followed(training, run.outcome)


def _joiner(run: ScenarioRun) -> None:
    """A process joins from all ranks: so any rank that is killed while the state is sent is one of its sources."""
    network, what = dataclasses.replace(run.network, frozen=run.state), "a process that gets the state is killed"
    with LaunchedTraining(network, run.folder, RANKS) as training:
        for _ in run.each_time(what):
            training.wait_for_ranks(RANKS)
            run.kill(training, anyone, "a rank is killed")
            pid, generation = training.wait_until_state_is_given(), training.notes.newest
            training.hold_newcomers()
            pause = training.kill_and_watch(pid)
            changes = training.notes.newest - generation
            if changes == 0:
                run.outcome.add(what, pause, _TRANSFER)
            elif changes == 1:
                run.outcome.problems.append(f"the ranks formed anew when process {pid} was killed, which was none")
            else:  # one more generation, and then one without it
                run.outcome.notes.append(_LATE.format(pid))
            training.let_newcomers_join()
            pid = training.wait_until_state_is_given()
            if pid in training.notes.latest:
                run.outcome.notes.append(_LATE.format(pid))
            run.kill(training, anyone, "a rank that gives the state is killed")
        training.wait_for_ranks(RANKS)
        conclude(training, run.outcome)
        compare_followed(training, run.outcome)


def _together(run: ScenarioRun) -> None:
    """Processes that are loaded wait for one another, and join in the moment in which a rank is killed."""
    what = f"a rank is killed, and {_JOINING} join"
    with LaunchedTraining(run.network, run.folder, RANKS, list_hosts=True) as training:
        for _ in run.each_time(what):
            training.set_slots(RANKS)
            training.wait_until_settled()
            training.hold_newcomers()
            training.set_slots(RANKS + _JOINING)
            newcomers = training.wait_for_newcomers(_JOINING)
            pids, generation = training.pids(), training.notes.newest
            victim = anyone(run.chance, pids)
            moment = training.kill(victim)
            training.let_newcomers_join()
            stay = [*(pid for pid in pids if pid != victim), *newcomers]
            run.outcome.add(what, training.notes.wait_for_change(moment, generation, stay), _TOGETHER)
            changes = training.notes.newest - generation
            if changes > _CHANGES:
                run.outcome.problems.append(f"{what}: that took {changes} generations, more than {_CHANGES}")
        training.wait_for_ranks(RANKS + _JOINING)
        conclude(training, run.outcome)


def _below(run: ScenarioRun) -> None:
    """A process that is loaded waits, too, until it is seen that the ranks wait for it.

    As soon as it asks to join, they end the step that the death has broken off, and stop for it at the next one.
    """
    what, between = "a process joins the others, who wait for it", 0
    with LaunchedTraining(run.network, run.folder, _ENOUGH, min_np=_ENOUGH) as training:
        for _ in run.each_time(what):
            pids, generation = training.wait_for_ranks(_ENOUGH), training.notes.newest
            training.hold_newcomers()
            victim = anyone(run.chance, pids)
            began = training.kill(victim)
            newcomers = training.wait_for_newcomers(1)
            moment = training.let_newcomers_join()
            stay = [*(pid for pid in pids if pid != victim), *newcomers]
            run.outcome.add(what, training.notes.wait_for_change(moment, generation, stay), _TOGETHER)
            if training.notes.steps_below(_ENOUGH, began, moment):
                run.outcome.problems.append(f"fewer than {_ENOUGH} ranks have trained before another one came")
            between = max(between, training.notes.steps_below(_ENOUGH, moment, time.monotonic()))
        training.wait_for_ranks(_ENOUGH)
        conclude(training, run.outcome)
        run.outcome.notes.append(
            f"from when a process asked to join until it was a rank, the others ended at most {between} steps"
        )


#: By their names for the command line.
JOINS: Dict[str, ChurnScenario] = {
    "large": ChurnScenario("four ranks with a large state: any is killed, and another one joins", 10, _large),
    "joiner": ChurnScenario("four ranks with a large state: who gets it is killed, and who gives it", 5, _joiner),
    "together": ChurnScenario("four ranks: three join in the moment in which one is killed", 10, _together),
    "below": ChurnScenario("three ranks, and no fewer may train: one is killed, and another one joins", 10, _below),
}
