"""Which samples may be compared: those taken while the ranks' cores were equally far apart.

A hypervisor may move a virtual machine's cores while it runs: onto one physical core, onto cores of one cache, onto
two sockets. A cache line's round trip then takes 40, 100 or 500 ns, and bandwidths differ by factors that have nothing
to do with the libraries. native/probe.h measures the round trip before and after each sample. This module
divides the round trips of a whole run into groups, wherever there is a gap. A sample belongs to the group of both its
probes. If the cores do not move, there is one group, and nothing is left out.
"""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Mapping, Protocol, Sequence, Tuple, TypeVar

from benchmarks import native

__all__ = ["Probed", "assign", "choose", "groups", "probe_library"]

GAP = 1.5  #: neighbours that differ by more than this factor belong to different groups


class Probed(Protocol):
    """A sample: ``probes`` are ns of a round trip before and after it (empty: not probed), ``distance`` its group."""

    probes: Tuple[float, ...]
    distance: int


S = TypeVar("S", bound=Probed)


def probe_library(ranks: int) -> str:
    """Return the path of the library that probes distances; empty where ranks share cores, as a probe would hang."""
    if ranks < 2 or ranks > len(os.sched_getaffinity(0)):
        return ""
    try:
        return str(native.compiled("probe"))
    except native.Unavailable as reason:
        print(f"distances between the cores are not probed: {reason}", file=sys.stderr)
        return ""


def groups(round_trips: Sequence[float]) -> List[Tuple[float, float]]:
    """Return the (shortest, longest) round trip of each group, ascending."""
    ranges: List[Tuple[float, float]] = []
    for value in sorted(round_trips):
        if ranges and value <= ranges[-1][1] * GAP:
            ranges[-1] = (ranges[-1][0], value)
        else:
            ranges.append((value, value))
    return ranges


def assign(samples: Mapping[str, Mapping[int, Sequence[S]]]) -> List[Tuple[float, float]]:
    """Set ``distance`` of all samples and return the groups. What was not probed is in group 0."""
    every = [sample for sizes in samples.values() for of_size in sizes.values() for sample in of_size]
    regimes = groups([probe for sample in every for probe in sample.probes])
    for sample in every:
        at = [next(n for n, (low, high) in enumerate(regimes) if low <= probe <= high) for probe in sample.probes]
        sample.distance = -1 if len(set(at)) > 1 else at[0] if at else 0
    return regimes


def choose(
    samples: Mapping[str, Mapping[int, List[S]]], sizes: Sequence[int]
) -> Dict[int, Tuple[Dict[str, List[S]], bool]]:
    """Return for each size the samples of each contestant to compare, and whether all were taken at one distance.

    They are of the group in which the contestant with the fewest samples has most; where no group has all
    contestants, all samples are taken and the second value is False.
    """
    return {nbytes: _choose_one({name: of_size[nbytes] for name, of_size in samples.items()}) for nbytes in sizes}


def _choose_one(samples: Mapping[str, List[S]]) -> Tuple[Dict[str, List[S]], bool]:
    distances = {sample.distance for series in samples.values() for sample in series} - {-1}
    least, best = 0, -1
    for distance in sorted(distances):
        fewest = min(sum(sample.distance == distance for sample in series) for series in samples.values())
        if fewest > least:
            least, best = fewest, distance
    if best < 0:
        return dict(samples), False
    return {name: [sample for sample in series if sample.distance == best] for name, series in samples.items()}, True
