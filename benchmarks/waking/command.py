"""``python -m benchmarks waking``: how soon a rank that sleeps goes on, once the rank it waits for has come."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence

from benchmarks import machine, native, search_path
from benchmarks.collectives.launch import Command, ContestantFailed, run_all
from ddl.tools.bench.figures import quantile
from ddl.tools.files import write_json
from ddl.tools.progress import Progress

__all__ = ["add_arguments", "run"]

#: What DDL is told; ``limit`` is a raw futex.
_SETTINGS: Dict[str, Dict[str, str]] = {"ddl": {}, "ddl-tcp": {"DDL_SHM": "0"}}


@dataclass(frozen=True)
class Waking:
    """Seconds from the late rank's call to when the sleeping one runs."""

    times: int
    min: float
    median: float
    p99: float

    @classmethod
    def of(cls, seconds: List[float]) -> Waking:
        ordered = sorted(seconds)
        return cls(len(ordered), ordered[0], quantile(ordered, 0.5), quantile(ordered, 0.99))


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks waking``."""
    add = parser.add_argument
    add("--times", type=int, default=200, help="how often a round wakes each sleeper (default 200)")
    add("--rounds", type=int, default=5, help="rounds, the contestants in turn (default 5)")
    add("--pause", type=float, default=0.005, help="seconds by which a rank is late (default 0.005)")
    add("--floor", type=float, help="exit with 1 if the raw futex's median over DDL's is below this")
    add("--json", type=Path, help="write all figures there")


def _limit(arguments: argparse.Namespace, output: Path) -> List[float]:
    options = ["--times", arguments.times, "--pause-µs", int(arguments.pause * 1e6), "--output", output]
    line = [str(native.compiled("waking")), *map(str, options)]
    written = run_all("limit", [Command(line, dict(os.environ))], output, 1)
    return [float(second) for second in written[0]["sizes"]["0"]["seconds"]]


def _ddl(name: str, arguments: argparse.Namespace, output: Path) -> List[float]:
    environ = {**os.environ, **_SETTINGS[name], "PYTHONPATH": search_path(os.environ)}
    worker = [sys.executable, "-m", "benchmarks.waking.worker"]
    line = [sys.executable, "-m", "ddl.launch", "-np", "2", "--no-prefix", *worker]
    line += map(str, (arguments.times, arguments.pause, output))
    called, woke = (report["moments"] for report in run_all(name, [Command(line, environ)], output, 2))
    return [after - before for before, after in zip(called, woke)]


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and return the exit status."""
    seconds: Dict[str, List[float]] = {name: [] for name in (*_SETTINGS, "limit")}
    facts = machine.facts()
    try:
        with Progress(arguments.rounds * len(seconds)) as progress:
            for number in range(arguments.rounds):
                for name, times in seconds.items():
                    progress.step(f"round {number + 1} of {arguments.rounds}: {name}")
                    with tempfile.TemporaryDirectory() as folder:
                        place = Path(folder)
                        times += _limit(arguments, place) if name == "limit" else _ddl(name, arguments, place)
    except (ContestantFailed, native.Unavailable) as problem:
        print(f"python -m benchmarks waking: {problem}", file=sys.stderr)
        return 1
    figures = {name: Waking.of(times) for name, times in seconds.items()}
    print(f"a rank that sleeps in a barrier is woken by one that is {arguments.pause * 1e3:g} ms late")
    print(machine.describe(facts))
    print(f"\n{'':8}  {'times':>6}  {'min':>8}  {'median':>8}  {'p99':>8}")
    for name, figure in figures.items():
        cells = (f"{value * 1e6:.1f} µs" for value in (figure.min, figure.median, figure.p99))
        print(f"{name:8}  {figure.times:6}  " + "  ".join(f"{cell:>8}" for cell in cells))
    if arguments.json:
        content = {"command": machine.command(), "machine": facts, "figures": {k: vars(v) for k, v in figures.items()}}
        write_json(arguments.json, content)
    share = figures["limit"].median / figures["ddl"].median
    if arguments.floor is not None and share < arguments.floor:
        print(f"python -m benchmarks waking: {share:.2f} of a raw futex's speed, under the floor", file=sys.stderr)
        return 1
    return 0
