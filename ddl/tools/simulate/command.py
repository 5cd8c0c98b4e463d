"""``ddl simulate``: times a training step, or single all-reduces, on a machine that a file describes.

Status 0, or 2 for bad usage, which includes a file that is wrong. docs/simulate.md.
What needs numpy and the core is loaded when something is simulated, so that the options are known without them.
"""

from __future__ import annotations

import argparse
from typing import Any, Dict, List, Sequence

from ddl.errors import ConfigError, InvalidArgument
from ddl.tools.files import write_json, write_text
from ddl.tools.simulate.description import PRESETS, Description, preset, read
from ddl.tools.sizes import parse_sizes
from ddl.tuning.simulate.models import MODELS

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl simulate``."""
    add = parser.add_argument
    machine = parser.add_mutually_exclusive_group(required=True)
    machine.add_argument("--topology", metavar="FILE", help="the machine, in TOML; docs/simulate.md")
    machine.add_argument("--preset", choices=PRESETS, help="a machine that comes with DDL, with its training")
    add("--mode", action="append", default=[], metavar="4x64", help="dimensions, innermost first; may be repeated")
    add("--hosts", type=_counts, default=[], metavar="N,N,…", help="with so many hosts; default: as in the file")
    add("--algorithm", default="", help="for every size, as DDL_ALGORITHM")
    add("--piece", type=_size, metavar="BYTES", help="pieces that large operations are cut into; default: DDL's own")
    add("--in-flight", type=int, choices=range(1, 5), metavar="N", help="how many of them at once, 1 to 4")
    add(
        "--straggler",
        action="append",
        default=[],
        metavar="RANK:+20ms",
        help="this rank is late by so much; RANK:x1.5: it is slower by this factor",
    )
    what = parser.add_argument_group("a training step (options beat the file)")
    what.add_argument("--model", choices=sorted(MODELS))
    what.add_argument("--classes", type=int, help="of the model's last layer (default 1000)")
    what.add_argument("--batch", type=int, help="samples per rank and step")
    what.add_argument("--samples-per-second", type=float, metavar="N", help="of one rank that is alone")
    what.add_argument("--bucket", type=_size, metavar="BYTES", help="most of a bucket: 8M (the default), 1G, …")
    what.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=None, help="send buckets during the backward pass"
    )
    add("--allreduce", type=parse_sizes, metavar="SIZES", help="single all-reduces instead: 256K,1M,32M")
    add("--json", metavar="FILE", help="also write all results to this file; -: print only them, on stdout")
    add("--svg", metavar="FILE", help="draw rank 0 and the stragglers, in the step of the last line")


def _counts(text: str) -> List[int]:
    if not all(word.isdecimal() and int(word) for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers of hosts, as 1,2,4")
    return [int(word) for word in text.split(",")]


def _size(text: str) -> int:
    return parse_sizes(text)[0]


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print and draw; return the exit status."""
    if arguments.allreduce and arguments.svg:
        raise ConfigError("--svg draws a training step; omit --allreduce")
    description = preset(arguments.preset) if arguments.preset else read(arguments.topology)
    try:
        content = _allreduces(arguments, description) if arguments.allreduce else _training(arguments, description)
    except InvalidArgument as error:  # of a planner: the algorithm does not suit the machine
        raise ConfigError(f"--algorithm {arguments.algorithm}: {error}") from error
    if arguments.json:
        if description.machine.gpus is not None:
            content["gpu_model_checked"] = False  # with hardware: docs/simulate.md
        content["assumptions"] = [vars(assumption) for assumption in description.assumptions]
        write_json(arguments.json, content)
    return 0


def _allreduces(arguments: argparse.Namespace, description: Description) -> Dict[str, Any]:
    from ddl.tools.simulate import report, scenario
    from ddl.tuning.simulate.simulation import SimulatedOperation, allreduces

    late = scenario.stragglers_of(arguments.straggler)
    simulated = [
        (
            place,
            nbytes,
            allreduces(place.machine, place.topology, [SimulatedOperation(nbytes)], lines=lines, stragglers=late),
        )
        for place in scenario.combinations(description, arguments.mode, arguments.hosts)
        for lines in [scenario.lines_for(place, arguments)]
        for nbytes in arguments.allreduce
    ]
    _say(arguments, report.allreduce_table(simulated), description, [outcome for _, _, outcome in simulated])
    return report.allreduce_json(simulated)


def _training(arguments: argparse.Namespace, description: Description) -> Dict[str, Any]:
    from ddl.tools.simulate import report, scenario, timeline
    from ddl.tuning.simulate.training import train

    work = scenario.workload(description, arguments)
    late = scenario.stragglers_of(arguments.straggler)
    watch = sorted({0, *late}) if arguments.svg else []
    steps = [
        (place, train(place.machine, place.topology, work, lines=lines, stragglers=late, watch=watch))
        for place in scenario.combinations(description, arguments.mode, arguments.hosts)
        for lines in [scenario.lines_for(place, arguments)]
    ]
    how = "buckets are sent during the backward pass" if work.overlap else "all is sent after the backward pass"
    title = f"{work.model.name}: {work.model.parameters / 1e6:.1f} million parameters, {how}"
    lines = [title, "", *report.training_table(steps)]
    published = description.training.published
    if published is not None:
        lines += ["", f"published, {description.machine.size} ranks: {100 * published:.0f} %"]
    _say(arguments, lines, description, [step.outcome for _, step in steps])
    if arguments.svg:
        place, step = steps[-1]
        head = f"{work.model.name}, {step.size} ranks as {place.topology}: {100 * step.efficiency:.1f} % efficiency"
        write_text(arguments.svg, timeline.draw(place, step, head, late))
    return report.training_json(steps, work)


def _say(arguments: argparse.Namespace, table: List[str], description: Description, outcomes: Sequence[Any]) -> None:
    from ddl.tools.simulate import report

    if arguments.json == "-":
        return
    blocks = [table, report.notes(description.machine, outcomes), report.assumed(description.assumptions)]
    print("\n\n".join("\n".join(block) for block in blocks if block))
