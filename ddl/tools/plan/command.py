"""``ddl plan MODE``: plans a collective for ranks laid out as MODE says, verifies it, prints its counts and draws it.

Nothing is started or connected. Status 0, 1 if the plan is wrong (a bug), 2 for bad usage.
"""

from __future__ import annotations

import argparse
from typing import List, Optional, Sequence

from ddl.bootstrap import parse
from ddl.errors import ConfigError, InvalidArgument
from ddl.plan import Collective, Plan, algorithms, build
from ddl.plan.draw import draw
from ddl.plan.layout import ROOTED
from ddl.plan.verify import verify
from ddl.tools.doctor.phrases import bytes_text, counted
from ddl.tools.files import write_json, write_text
from ddl.tools.plan.figures import PlanFigures, figures
from ddl.tools.plan.report import report, steps_lines
from ddl.topology import Topology
from ddl.tuning.select import Line, select

__all__ = ["add_arguments", "run"]

_COLLECTIVES = {collective.name.lower(): collective for collective in Collective if algorithms(collective)}
_ALGORITHMS = sorted({name for collective in Collective for name in algorithms(collective)})
#: Without --verify, a plan is verified if the estimated time is not longer. The estimate is for a processor of 2020.
_MOST_SECONDS = 2.0
_SECONDS_EACH = 80e-9  # for each clock or chunk


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl plan``."""
    add = parser.add_argument
    add("mode", metavar="MODE", help="sizes of the dimensions, innermost first, as 4x8x2: ranks, hosts, racks")
    add("--collective", choices=_COLLECTIVES, default="allreduce", help="default: allreduce")
    add("--algorithm", choices=_ALGORITHMS, help="default: the one that serves that many bytes there")
    add("--bytes", type=_size, default=64 << 20, metavar="SIZE", help="of a rank's buffer, as 64M (default) or 4K")
    add(
        "--shared",
        type=int,
        default=1,
        metavar="N",
        help="how many dimensions, innermost first, share memory (default 1: the ranks of a host)",
    )
    add("--root", type=int, default=0, metavar="R", help="of a broadcast, reduce, gather or scatter (default 0)")
    add("--rank", type=int, metavar="R", help="print the steps of this rank, too, and draw a large plan around it")
    add("--svg", metavar="FILE", help="draw the plan to this file")
    add("--json", metavar="FILE", help="also write the counts to this file; -: print only them, on stdout")
    add("--verify", action="store_true", help="verify the plan even if it takes long")


def _size(text: str) -> int:
    try:
        return parse.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: it must be {error}") from error


def run(arguments: argparse.Namespace) -> int:
    """Plan, verify, count, print and draw; return the exit status."""
    topology = _topology(arguments.mode, arguments.shared)
    collective = _COLLECTIVES[arguments.collective]
    _check_ranks(arguments, collective, topology)
    line = _line(collective, topology, arguments.algorithm, arguments.bytes)
    root: int = arguments.root
    focus: int = root if arguments.rank is None else arguments.rank
    try:
        own_plan = build(collective, line.algorithm, topology, focus, root)
    except InvalidArgument as error:
        raise ConfigError(f"--algorithm {line.algorithm}: {error}") from error
    plans: List[Plan] = [own_plan]
    proof = None
    seconds = _effort(build(collective, line.algorithm, topology, root, root))
    if arguments.verify or seconds <= _MOST_SECONDS:
        plans = [build(collective, line.algorithm, topology, rank, root) for rank in range(topology.size)]
        proof = verify(plans)
        if any(plan.in_place for plan in plans):
            verify(plans, in_place=True)  # the same steps, but here they could overwrite what is still to be read
    computed = figures(plans, proof, topology, arguments.bytes, line)
    if arguments.svg:
        if proof is None:
            raise ConfigError(f"--svg {arguments.svg}: only a verified plan can be drawn; add --verify")
        write_text(arguments.svg, draw(plans, proof, topology, focus=focus, subtitle=_subtitle(computed)))
    if arguments.json:
        write_json(arguments.json, computed.to_json())
    if arguments.json != "-":
        steps = [] if arguments.rank is None else steps_lines(own_plan, proof)
        print("\n".join([*report(computed, seconds), *steps]))
    return 0


def _topology(mode: str, shared: int) -> Topology:
    most = len(Topology.parse(mode).dimensions)
    if not 0 <= shared <= most:
        raise ConfigError(f"--shared {shared}: mode {mode} has {counted(most, 'dimension')}; give 0 to {most}")
    return Topology.parse(mode, shared=shared)


def _check_ranks(arguments: argparse.Namespace, collective: Collective, topology: Topology) -> None:
    for option, rank in (("--root", arguments.root), ("--rank", arguments.rank)):
        if rank is not None and not 0 <= rank < topology.size:
            raise ConfigError(f"{option} {rank}: mode {topology} has ranks 0 to {topology.size - 1}")
    if arguments.root and collective not in ROOTED:
        raise ConfigError(f"--root {arguments.root}: {arguments.collective} has no root; omit this option")


def _line(collective: Collective, topology: Topology, algorithm: Optional[str], nbytes: int) -> Line:
    """Return the line for ``nbytes``, with ``algorithm`` instead of its own, if given."""
    offered = algorithms(collective)
    if algorithm and algorithm not in offered:
        what = collective.name.lower()
        raise ConfigError(f"--algorithm {algorithm}: {what} has no such algorithm; use one of {', '.join(offered)}")
    return next(line for line in select(collective, topology, algorithm or "") if nbytes <= line.max_bytes)


def _effort(plan: Plan) -> float:
    """Estimate the seconds to verify the plans of all ranks: a step with a peer compares clocks of all ranks."""
    each = sum(max(1, len(step.peers)) * (plan.size + step.count) for channel in plan.channels for step in channel)
    return each * plan.size * _SECONDS_EACH * (2 if plan.in_place else 1)


def _subtitle(computed: PlanFigures) -> str:
    parts = [counted(computed.topology.size, "rank")]
    if computed.chunks:
        chunks = f"{counted(computed.chunks, 'chunk')} of {bytes_text(computed.chunk_bytes)}"
        parts += [f"buffers of {bytes_text(computed.nbytes)}", chunks]
    return ", ".join([*parts, counted(computed.rounds or 0, "round")])
