"""From options and a description to simulated runs: which sizes, which dimensions, which stragglers."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Dict, Iterator, List, Sequence, Tuple

from ddl._comm.group import discover
from ddl.errors import ConfigError
from ddl.plan.buckets import BUCKET_BYTES
from ddl.plan.ir import Collective
from ddl.tools.simulate.description import Description
from ddl.topology import Topology
from ddl.tuning.select import Line, select
from ddl.tuning.simulate.cost import Machine
from ddl.tuning.simulate.models import model
from ddl.tuning.simulate.simulation import Lateness
from ddl.tuning.simulate.training import Workload

__all__ = ["Scenario", "lines_for", "combinations", "stragglers_of", "workload"]

_LATE = re.compile(r"(\d+):(?:\+(\d+(?:\.\d+)?)ms|x(\d+(?:\.\d+)?))")


@dataclass(frozen=True)
class Scenario:
    """A machine of some size, and the dimensions that its ranks are laid out in."""

    machine: Machine
    topology: Topology


def combinations(description: Description, modes: Sequence[str], hosts: Sequence[int]) -> Iterator[Scenario]:
    """Return every combination of a number of hosts and a mode; none given: the file's, or the machine as it is.

    A mode is that of the full size: with fewer hosts its outer dimensions shrink, and what is the same comes once.
    Raises ``ConfigError`` where a mode does not fit.
    """
    machine = description.machine
    whole = machine.size // machine.ranks_per_host
    for count in hosts or description.hosts or (whole,):
        smaller = machine if count == whole else machine.with_hosts(count)
        wanted = modes or description.modes or ("",)
        for dimensions in dict.fromkeys(_shrunk(mode, machine.size, smaller.size) if mode else "" for mode in wanted):
            yield Scenario(smaller, discover(smaller.hosts(), dimensions))


def _shrunk(mode: str, full: int, size: int) -> str:
    """Return the dimensions of ``mode``, for ``full`` ranks, of which only ``size`` are there: the inner ones whole."""
    kept: List[int] = []
    remaining = size
    for dimension in Topology.parse(mode, size=full).dimensions:
        here = min(dimension.size, remaining)
        if remaining % here:
            raise ConfigError(f"mode {mode}: {size} ranks do not fill whole groups of {prod(kept) * here}")
        kept.append(here)
        remaining //= here
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def workload(description: Description, arguments: argparse.Namespace) -> Workload:
    """Return what a rank computes: what was asked for, else what the file says. Raises ``ConfigError``."""
    said = description.training
    name = arguments.model or said.model
    batch = said.batch if arguments.batch is None else arguments.batch
    rate = said.samples_per_second if arguments.samples_per_second is None else arguments.samples_per_second
    classes = said.classes if arguments.classes is None else arguments.classes
    for option, value in (("--model", name), ("--batch", batch), ("--samples-per-second", rate)):
        if value is None:
            raise ConfigError(f"{option} is needed: neither it nor [training] of the file says it")
    assert name is not None and batch is not None and rate is not None
    for option, number in (("--batch", batch), ("--samples-per-second", rate)):
        if not 0 < number < inf:
            raise ConfigError(f"{option}, or [training] of the file, says {number:g}: it must be above 0, and finite")
    overlap = said.overlap if arguments.overlap is None else arguments.overlap
    bucket = arguments.bucket or said.bucket_bytes or BUCKET_BYTES
    return Workload(model(name, classes), batch / rate, bucket, overlap)


def stragglers_of(texts: Sequence[str]) -> Dict[int, Lateness]:
    """Read ``RANK:+20ms`` and ``RANK:x1.5``. Raises ``ConfigError``."""
    delays = {}
    for text in texts:
        match = _LATE.fullmatch(text)
        if match is None or match[3] and float(match[3]) <= 0:
            raise ConfigError(f"--straggler {text}: write RANK:+20ms (so much later) or RANK:x1.5 (so much slower)")
        late = Lateness(factor=float(match[3])) if match[3] else Lateness(plus_s=float(match[2]) / 1e3)
        delays[int(match[1])] = late
    return delays


def lines_for(place: Scenario, arguments: argparse.Namespace) -> Tuple[Line, ...]:
    """Return what ``select`` chooses, with what was asked for instead: algorithm, pieces, how many in flight."""
    lines = select(Collective.ALLREDUCE, place.topology, arguments.algorithm)
    piece, in_flight = arguments.piece, arguments.in_flight
    return tuple(
        line
        if line.small
        else replace(line, piece_bytes=piece or line.piece_bytes, in_flight=in_flight or line.in_flight)
        for line in lines
    )
