"""``python -m benchmarks churn``: how long ranks stand still when others are killed, and when others join.

Trainings of a small network run on this machine, and their ranks are killed: scenarios.py says which and when. With
``--soak``, a single training runs for long, and chance decides (soak.py). At the end of each, the ranks must have equal
weights, and must have used each sample exactly once in each epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
from pathlib import Path
from typing import Iterator, Sequence

from benchmarks import machine
from benchmarks.churn.host_scenarios import HOST_SCENARIOS
from benchmarks.churn.report import ChurnOutcome
from benchmarks.churn.scenarios import SCENARIOS
from benchmarks.churn.soak import Soak
from benchmarks.churn.trainings import ChurnNetwork
from ddl.tools.files import write_json

__all__ = ["add_arguments", "run"]

_ALL = {**SCENARIOS, **HOST_SCENARIOS}


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks churn``."""
    add = parser.add_argument
    names = ", ".join(_ALL)
    add("--scenario", choices=[*_ALL, "all"], default="all", metavar="NAME", help=f"all (default), or of {names}")
    add("--times", type=int, default=0, help="how often a scenario kills (default: each has its number)")
    add("--soak", type=float, metavar="SECONDS", help="run a single training for so long, and let chance decide")
    add("--step", type=float, default=0.05, help="seconds of a step (default 0.05)")
    add("--width", type=int, default=256, help="of the network's layers (default 256)")
    add("--samples", type=int, default=200, help="of an epoch (default 200)")
    add("--state", type=int, default=10**9, help="bytes of weights, where it is about a large state (default 1 GB)")
    add("--seed", type=int, default=1, help="of what is done, and to whom (default 1)")
    add("--folder", type=Path, help="keep there what ranks note and print, and what they use (usage.csv)")
    add("--json", type=Path, help="write all figures there")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and return the exit status: 1 if a limit was missed, or something else is wrong."""
    facts = machine.facts()
    print(f"trainings on this machine, steps of {1e3 * arguments.step:g} ms\n{machine.describe(facts)}", flush=True)
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        for outcome in _outcomes(arguments, arguments.folder or Path(scratch)):
            outcome.compare_with_limits()
            print(f"\n{outcome.text()}", flush=True)
            outcomes.append(outcome)
    if arguments.json:
        content = [dataclasses.asdict(outcome) for outcome in outcomes]
        write_json(arguments.json, {"command": machine.command(), "machine": facts, "outcomes": content})
    return 1 if any(outcome.problems for outcome in outcomes) else 0


def _outcomes(arguments: argparse.Namespace, folder: Path) -> Iterator[ChurnOutcome]:
    network = ChurnNetwork(arguments.step, arguments.width, arguments.samples)
    if arguments.soak is not None:
        yield Soak(network, folder, arguments.soak, random.Random(arguments.seed)).run()
        return
    for name in _ALL if arguments.scenario == "all" else [arguments.scenario]:
        (folder / name).mkdir()
        yield _ALL[name].run(network, folder / name, arguments.seed, arguments.times, arguments.state)
