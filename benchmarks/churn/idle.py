"""What elasticity costs while nothing happens: an elastic job and a plain one, which train in turn (idle_worker.py)."""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List

from benchmarks.churn.report import ChurnOutcome
from benchmarks.jobs import run_job

__all__ = ["measure_idle"]

_MOST = 0.01  # of a step
_PATIENCE = 300.0  # seconds for both jobs
_OPTIONS: Dict[str, List[str]] = {"plain": [], "elastic": ["--min-np", "1"]}


def measure_idle(outcome: ChurnOutcome, folder: Path, times: int) -> None:
    """Run so many pairs of jobs, and add to ``outcome`` what was seen, and whether it is more than one percent."""
    costs: List[float] = []
    for number in range(times):
        turns = folder / str(number)
        turns.mkdir()
        for name in _OPTIONS:
            os.mkfifo(turns / name)
        jobs = _run_pair(turns, "elastic" if number % 2 else "plain")
        plain, elastic = (jobs[name]["blocks"] for name in ("plain", "elastic"))
        more = [statistics.median(b) / statistics.median(a) - 1 for a, b in zip(plain, elastic)]
        costs += more
        outcome.trainings += 2
        step, mebibytes = 1e3 * statistics.median(sum(plain, [])), jobs["plain"]["bytes"] / 2**20
        outcome.notes.append(
            f"steps of {step:.1f} ms with {mebibytes:.0f} MiB of gradients: {100 * statistics.median(more):+.1f} %"
        )
    first, _, last = statistics.quantiles(costs, n=4)
    cost = statistics.median(costs)
    outcome.notes.append(
        f"all blocks: {100 * cost:+.1f} %, and half of them between {100 * first:+.1f} and {100 * last:+.1f} %"
    )
    if cost > _MOST:
        outcome.problems.append(f"a step takes {100 * cost:.1f} % longer, more than {100 * _MOST:g} %")


def _run_pair(turns: Path, first: str) -> Dict[str, Any]:
    """Run both jobs at once, of which ``first`` has the first turn; return what each has printed."""

    def run(name: str) -> Any:
        program = ["benchmarks.churn.idle_worker", name, str(turns), first]
        return run_job(2, program, options=_OPTIONS[name], timeout=_PATIENCE)

    with ThreadPoolExecutor(len(_OPTIONS)) as pool:
        return dict(zip(_OPTIONS, pool.map(run, _OPTIONS)))
