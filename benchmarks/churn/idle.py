"""What ``elastic.Training`` costs while nothing happens: steps with it and without, in one job (idle_worker.py)."""

from __future__ import annotations

import statistics

from benchmarks.churn.report import ChurnOutcome
from benchmarks.jobs import run_job

__all__ = ["measure_idle"]

_MOST = 0.01  # of a step
_PATIENCE = 300.0  # seconds for a job


def measure_idle(outcome: ChurnOutcome, times: int) -> None:
    """Run the job so often, and add to ``outcome`` what was seen, and whether it is more than one percent."""
    costs = []
    for _ in range(times):
        seconds = run_job(2, ["benchmarks.churn.idle_worker"], options=["--min-np", "1"], timeout=_PATIENCE)
        costs.append(statistics.median(b / a - 1 for a, b in zip(seconds["plain"], seconds["elastic"])))
        outcome.trainings += 1
        step, mebibytes = 1e3 * statistics.median(seconds["plain"]), seconds["bytes"] / 2**20
        outcome.notes.append(f"steps of {step:.1f} ms with {mebibytes:.0f} MiB of gradients: {100 * costs[-1]:+.1f} %")
    if statistics.median(costs) > _MOST:
        outcome.problems.append(
            f"a step takes {100 * statistics.median(costs):.1f} % longer, more than {100 * _MOST:g} %"
        )
