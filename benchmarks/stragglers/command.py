"""``python -m benchmarks stragglers``: false alarms in healthy jobs, how soon a slow rank is found, and its healing.

Healthy jobs are simulated (simulated.py), and run on this machine. Exit status 1 if any rank of a healthy one was
called late. At the end, ``--rebalance`` is measured (rebalanced.py).
"""

from __future__ import annotations

import argparse
import statistics
from typing import Dict, List, Sequence

from benchmarks import machine
from benchmarks.jobs import run_job
from benchmarks.stragglers.simulated import HEALTHY, jobs, judge, late_after, slowed
from ddl.text.columns import aligned
from ddl.text.units import duration
from ddl.tools.progress import Progress

__all__ = ["add_arguments", "run"]

SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)  #: of the time between operations by which a rank is slower
_KINDS = ("steady", "pause", "slow start")  # of real jobs
_SIZES = (2, 4)
_TRANSPORTS: Dict[str, Dict[str, str]] = {"shared memory": {}, "TCP": {"DDL_SHM": "0"}}
_LATE = (0.0015, 0.003, 0.01)  # seconds; the step has 10 ms
_REBALANCED = ((4, 64, 0.1), (6, 8, 0.03), (6, 64, 0.15), (8, 64, 0.2))  # ranks, MiB, seconds late
_GRACE = 120.0  # seconds that a real job may take longer than it should


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks stragglers``."""
    add = parser.add_argument
    add("--simulated", type=int, default=1000, help="healthy jobs to simulate (default %(default)s)")
    add("--real", type=int, default=40, help="healthy jobs to run (default %(default)s)")
    add("--seconds", type=float, default=60.0, help="of a simulated job (default %(default)g)")
    add("--real-seconds", type=float, default=12.0, help="of a real job (default %(default)g)")
    add("--rounds", type=int, default=20, help="of calls by each plan, to measure --rebalance (default %(default)s)")
    add("--seed", type=int, default=1)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and return the exit status."""
    print("who is called late: healthy jobs, and jobs in which one rank is slower")
    print(machine.describe(machine.facts()))
    accused = _simulated_healthy(arguments)
    _simulated_slow(arguments)
    if arguments.real:
        accused += _real(arguments)
    if arguments.rounds:
        _rebalanced(arguments.rounds)
    print(
        "\nnobody was accused in a healthy job" if not accused else f"\n{accused} healthy jobs had a rank called late"
    )
    return 1 if accused else 0


def _simulated_healthy(given: argparse.Namespace) -> int:
    """Print for each kind how many jobs had a rank called late; return how many in all."""
    counts = {kind: [0, 0] for kind in HEALTHY}
    with Progress(given.simulated, after=10.0) as progress:
        for kind, job, chance in jobs(given.simulated, given.seconds, given.seed):
            accused = bool(judge(job, HEALTHY[kind](job, chance), chance).first)
            counts[kind][0] += 1
            counts[kind][1] += accused
            progress.step(f"simulated, healthy: {kind}")
    rows = [(kind, str(number), str(accused)) for kind, (number, accused) in counts.items()]
    print(f"\n{given.simulated} healthy jobs, simulated, of {given.seconds:g} s each")
    print("\n".join(aligned([("disturbed by", "jobs", "accused"), *rows])))
    return sum(accused for _, accused in counts.values())


def _simulated_slow(given: argparse.Namespace) -> None:
    """Print how often and how soon a rank is found that is slower by some share."""
    rows = []
    number = max(len(HEALTHY), given.simulated // 10)
    with Progress(number * len(SHARES), after=10.0) as progress:
        for share in SHARES:
            after: List[float] = []
            errors: List[float] = []
            for kind, job, chance in jobs(number, given.seconds, given.seed + 1):
                own = HEALTHY[kind](job, chance)
                rank = int(chance.integers(job.ranks))
                verdicts = judge(job, slowed(own, rank, share), chance)
                seconds = late_after(verdicts, rank)
                if seconds is not None:
                    after.append(seconds)
                    errors.append(verdicts.last[rank] / (share * own.mean()) - 1)
                progress.step(f"simulated, {share:.0%} slower")
            times = f"{len(after)} of {number}"
            soon = duration(statistics.median(after)) if after else "-"
            error = f"{statistics.median(errors):+.0%}" if errors else "-"
            rows.append((f"{share:.0%}", times, soon, error))
    print("\na rank needs longer, all the time, in jobs that are disturbed as above")
    print("\n".join(aligned([("slower by", "found, and no other", "after (median)", "told, off by"), *rows])))


def _real(given: argparse.Namespace) -> int:
    """Print what real jobs say; return how many healthy ones had a rank called late."""
    settings = [(kind, size, name) for kind in _KINDS for size in _SIZES for name in _TRANSPORTS]
    accused: List[str] = []
    rows = []
    with Progress(given.real + len(_LATE), after=10.0) as progress:
        for number in range(given.real):
            kind, size, name = settings[number % len(settings)]
            late = _job(given, kind, size, name, 0.0)
            accused += [f"{kind}, {size} ranks, {name}: {late}"] if late else []
            progress.step(f"real: {kind}, {size} ranks, {name}")
        for seconds in _LATE:
            late = _job(given, "steady", 2, "shared memory", seconds)
            rows.append((duration(seconds), ", ".join(f"rank {r}: {duration(v)}" for r, v in late.items()) or "nobody"))
            progress.step("real: a slow rank")
    print(f"\n{given.real} healthy jobs on this machine, of {given.real_seconds:g} s each: {len(accused)} accused")
    print("\n".join(f"    {line}" for line in accused), end="\n" if accused else "")
    print("\nrank 1 of 2 sleeps before each operation, in steps of 10 ms")
    print("\n".join(aligned([("it sleeps", "called late"), *rows])))
    return len(accused)


def _job(given: argparse.Namespace, kind: str, size: int, transport: str, late: float) -> Dict[int, float]:
    """Run a job; return who was called late, and by how many seconds."""
    program = ["benchmarks.stragglers.worker", kind, f"{given.real_seconds:g}", f"{late:g}"]
    answer = run_job(size, program, variables=_TRANSPORTS[transport], timeout=given.real_seconds + _GRACE)
    return {int(rank): float(seconds) for rank, seconds in answer["late"].items()}


def _rebalanced(rounds: int) -> None:
    """Print how long an all-reduce takes after a late rank has come, by both plans in turn."""
    rows = []
    with Progress(len(_REBALANCED), after=10.0) as progress:
        for size, mib, late in _REBALANCED:
            program = ["benchmarks.stragglers.rebalanced", str(mib << 20), f"{late:g}", str(rounds)]
            took = run_job(size, program)
            alike, healed = (statistics.median(took[name]) for name in ("alike", "rebalanced"))
            rows.append((str(size), f"{mib} MiB", duration(alike), duration(healed), f"{alike / healed:.2f}"))
            progress.step("rebalanced")
    print("\nan all-reduce in shared memory, from when the last rank has come, which is always late; median")
    print("\n".join(aligned([("ranks", "bytes", "all work alike", "the others work", "ratio"), *rows])))
