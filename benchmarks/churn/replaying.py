"""Trains again by what the ranks of a training have noted, in one process, and compares the bits (replay_worker.py)."""

from __future__ import annotations

from benchmarks.churn.notes import end_text
from benchmarks.churn.report import ChurnOutcome
from benchmarks.churn.trainings import ChurnTraining
from benchmarks.jobs import run_job
from ddl.tools.files import write_json

__all__ = ["compare_replay"]


def compare_replay(training: ChurnTraining, outcome: ChurnOutcome) -> None:
    """Replay a deterministic training that has ended; it is a problem in ``outcome`` if the weights are others."""
    network, path = training.network, training.folder / "records"
    write_json(path, {"records": [record.to_plain() for record in training.notes.records]}, quiet=True)
    program = ["benchmarks.churn.replay_worker", str(path), str(network.width), str(network.samples)]
    answer = run_job(1, program)
    outcome.notes.append(f"a replay of {answer['steps']} steps by one process ended with {answer['digest']}")
    ends = set(training.notes.ends.values())
    if ends != {end_text(answer["digest"], answer["steps"])}:
        outcome.problems.append(f"the ranks ended with other bits than the replay of their steps: {sorted(ends)}")
