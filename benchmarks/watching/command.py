"""``python -m benchmarks watching``: what it costs a job to be recorded, and to be watched by page and timeline.

Jobs of two ranks run in turn: with a core that records nothing (``--unrecorded``, a checkout that was built so), as
usual, with the page, with the timeline, and with both.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from benchmarks import machine
from benchmarks.jobs import run_job
from ddl.text.columns import aligned
from ddl.text.units import duration
from ddl.tools.files import write_json
from ddl.tools.progress import Progress

__all__ = ["add_arguments", "run"]

_PAGE = ("--dashboard=127.0.0.1:0", "--history", "history.jsonl")
_TIMELINE = ("--timeline", "timeline.json")
_UNRECORDED, _RECORDED = "nothing is recorded", "recorded, as always"
_SETTINGS: Dict[str, Tuple[str, ...]] = {
    _RECORDED: (),
    "with the page": _PAGE,
    "with the timeline": _TIMELINE,
    "with both": (*_PAGE, *_TIMELINE),
}
_WORDS = {"call": "allreduce_, 8 B", "prepared": "prepared, 8 B", "step": "step"}


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks watching``."""
    add = parser.add_argument
    add("--rounds", type=int, default=15, help="jobs in each setting, in turn (default %(default)s)")
    add("--seconds", type=float, default=3.0, help="of a job (default %(default)g)")
    add("--unrecorded", type=Path, metavar="DIR", help="a checkout built by DDL_CMAKE_ARGS=-DDDL_UNRECORDED=ON")
    add("--json", type=Path, help="write all figures there")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print and return the exit status."""
    settings = {**({_UNRECORDED: ()} if arguments.unrecorded else {}), **_SETTINGS}
    figures: Dict[str, Dict[str, List[float]]] = {name: {what: [] for what in _WORDS} for name in settings}
    chance = random.Random(1)
    with Progress(arguments.rounds * len(settings), after=10.0) as progress:
        for number in range(arguments.rounds):
            for name in chance.sample(list(settings), len(settings)):
                progress.step(f"round {number + 1} of {arguments.rounds}: {name}")
                checkout = arguments.unrecorded if name == _UNRECORDED else None
                program = ["benchmarks.watching.worker", f"{arguments.seconds:g}"]
                with tempfile.TemporaryDirectory() as folder:
                    job = run_job(2, program, options=settings[name], folder=Path(folder), checkout=checkout)
                for what, seconds in job.items():
                    figures[name][what].append(seconds)
    facts = machine.facts()
    print(f"what it costs two ranks of this machine to be watched; medians of {arguments.rounds} jobs, in turn")
    print(machine.describe(facts))
    first = next(iter(settings))
    rows = []
    for name, measured in figures.items():
        cells = []
        for what, values in measured.items():
            # Jobs of one round are compared with one another: the machine is not as fast in each round.
            ratio = statistics.median(value / base for value, base in zip(values, figures[first][what]))
            median = statistics.median(values)
            cells += [
                f"{1e9 * median:.0f} ns" if median < 1e-5 else duration(median),
                "" if name == first else f"{100 * (ratio - 1):+.1f} %",
            ]
        rows.append((name, *cells))
    head = ["", *(cell for word in _WORDS.values() for cell in (word, ""))]
    print("\n" + "\n".join(aligned([tuple(head), *rows])))
    if arguments.json:
        write_json(arguments.json, {"command": machine.command(), "machine": facts, "seconds": figures})
    return 0
