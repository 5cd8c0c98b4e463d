"""Computes figures from timed calls: quantiles, bandwidths, CPU time. Definitions: docs/benchmarks.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence, Tuple

from ddl.tools.bench.values import LATENCY_BYTES

__all__ = ["Figures", "Sample", "bus_factor", "merge", "quantile"]

QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass
class Sample:
    """The measurements of one start of a contestant at one size."""

    round: int
    seconds: List[float]  # of each call
    cpu: float  # seconds of all calls together, over all threads of all ranks
    calls: int  # number of calls that ``cpu`` covers
    probes: Tuple[float, ...] = ()  # ns of a cache line's round trip before and after; empty: not probed
    distance: int = field(default=0, compare=False)  # number of the group of ``regimes``; -1: it changed meanwhile


def merge(round: int, ranks: Sequence[Dict[str, Any]]) -> Dict[int, Sample]:
    """Return a start's samples by size, from the results that its ranks wrote.

    The time of a call after a barrier is that of its slowest rank. Calls without barriers count as on rank 0.
    """
    samples = {}
    for key, first in ranks[0]["sizes"].items():
        of_ranks = [rank["sizes"][key] for rank in ranks]
        alone = int(key) <= LATENCY_BYTES
        seconds = (
            first["seconds"] if alone else [max(call) for call in zip(*(result["seconds"] for result in of_ranks))]
        )
        probes = tuple(first["probes"]) if all(first["probes"]) else ()
        samples[int(key)] = Sample(round, seconds, sum(result["cpu"] for result in of_ranks), first["calls"], probes)
    return samples


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests defines them."""
    if collective == "allreduce":
        return 2 * (ranks - 1) / ranks
    return 1.0 if collective == "broadcast" else (ranks - 1) / ranks


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the value at ``q`` of 0 to 1 in an ordered list, interpolating between neighbours."""
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass
class Figures:
    """One contestant at one size. Seconds, GB/s (10^9 bytes), and CPU seconds per GB."""

    calls: int
    min: float
    median: float
    p99: float
    algbw: float
    busbw: float
    cpu_per_gb: float
    quantiles: Dict[str, float]
    round_medians: List[float]

    @classmethod
    def of(cls, samples: Sequence[Sample], nbytes: int, factor: float) -> Figures:
        """Pool the calls of ``samples`` (at least one)."""
        ordered = sorted(second for sample in samples for second in sample.seconds)
        median = quantile(ordered, 0.5)
        calls = sum(sample.calls for sample in samples)
        return cls(
            calls=calls,
            min=ordered[0],
            median=median,
            p99=quantile(ordered, 0.99),
            algbw=nbytes / median / 1e9,
            busbw=nbytes / median / 1e9 * factor,
            cpu_per_gb=sum(sample.cpu for sample in samples) / (calls * nbytes / 1e9),
            quantiles={f"{q:g}": quantile(ordered, q) for q in QUANTILES},
            round_medians=[statistics.median(sample.seconds) for sample in samples],
        )
