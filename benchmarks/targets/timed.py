"""Targets a to e: all-reduces, timed on clusters of several shapes, of DDL and of all others in turn.

A ``Case`` is a shape with the contestants that run on it and how their medians are judged. Before the rounds the pump
(native/pump.cc) says what one TCP stream does between two of the hosts: the measured explanation of a target missed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from benchmarks.collectives import contestants
from benchmarks.collectives.call_counts import TimingPace, call_counts
from benchmarks.collectives.contestants import Conditions, Contestant
from benchmarks.collectives.rounds import in_turn, start
from benchmarks.machine import Processors
from benchmarks.targets.bounds import ETHERNET, TOKEN_BUCKETS, ring_seconds
from benchmarks.targets.rows import Row
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.bench.figures import Sample, merge, quantile
from ddl.tools.progress import Progress
from lab import FOUR_HOSTS, TWO_RACKS, Cluster, Shape

__all__ = ["CASES", "Case", "CaseResult", "Medians", "measure", "rows"]

Medians = Mapping[str, float]  #: seconds by contestant
GBIT = 10**9
MPI = ("openmpi", "mpich")


def _ours(name: str = "ddl", **environ: str) -> Contestant:
    return dataclasses.replace(contestants.find("ddl"), name=name, environ=tuple(environ.items()))


@dataclass(frozen=True)
class Case:
    """What runs on a cluster of ``shape``, and how the medians of each size come to rows."""

    target: str
    what: str
    shape: Shape
    judge: Callable[[Case, int, Medians], List[Row]]
    ours: Tuple[Contestant, ...] = (_ours(),)  #: the first is judged
    sizes: Tuple[int, ...] = ()  #: bytes; none: the one of --size

    def row(self, nbytes: int, medians: Medians, ratio: float, of: str, wanted: float, **more: Any) -> Row:
        """Return the row of one size; ``more`` are further fields of it."""
        mpi = min((name for name in MPI if name in medians), key=medians.__getitem__, default="")
        what = f"{self.what}, {exact_bytes_text(nbytes)}"
        row = Row(self.target, what, ratio, of, wanted, ours=medians["ddl"], gloo=medians.get("gloo"))
        return dataclasses.replace(row, mpi=medians.get(mpi), mpi_name=mpi, **more)


def _near_bound(case: Case, nbytes: int, medians: Medians) -> List[Row]:
    rate = case.shape.rails[0]
    assert rate is not None
    bound, own = ring_seconds(nbytes, case.shape.hosts, rate), medians["ddl"]
    note = f"{own / bound / TOKEN_BUCKETS:.3f} x the bound with headers as these token buckets count them "
    note += f"({duration(bound * TOKEN_BUCKETS, 3)}), {own / bound / ETHERNET:.3f} x that of Ethernet"
    return [case.row(nbytes, medians, own / bound, "bound", 1.05, bound=bound, note=note)]


def _over_one_rail(case: Case, nbytes: int, medians: Medians) -> List[Row]:
    bound = ring_seconds(nbytes, case.shape.hosts, sum(rate or 0 for rate in case.shape.rails))
    gain = medians["ddl one rail"] / medians["ddl"]
    note = f"one rail: {duration(medians['ddl one rail'], 3)}"
    return [case.row(nbytes, medians, gain, "one rail", 1.9, at_most=False, bound=bound, note=note)]


def _share_of_sum(case: Case, nbytes: int, medians: Medians) -> List[Row]:
    bound = ring_seconds(nbytes, case.shape.hosts, sum(rate or 0 for rate in case.shape.rails))
    counted = bound * TOKEN_BUCKETS
    note = f"{bound / medians['ddl']:.3f} of the sum without headers ({duration(bound, 3)}), "
    note += f"{bound * ETHERNET / medians['ddl']:.3f} with those of Ethernet; one rail: "
    note += duration(medians["ddl one rail"], 3)
    share = counted / medians["ddl"]
    return [case.row(nbytes, medians, share, "sum of the rails", 0.95, at_most=False, bound=counted, note=note)]


def _over_flat_ring(case: Case, nbytes: int, medians: Medians) -> List[Row]:
    assert case.shape.uplink is not None
    bound = ring_seconds(nbytes, case.shape.racks, case.shape.uplink)
    gain = medians["ddl ring"] / medians["ddl"]
    note = f"flat ring: {duration(medians['ddl ring'], 3)}; the bound is the uplinks', without headers"
    return [case.row(nbytes, medians, gain, "flat ring", 1.4, at_most=False, bound=bound, note=note)]


def _against_others(case: Case, nbytes: int, medians: Medians) -> List[Row]:
    own, mpi = medians["ddl"], [medians[name] for name in MPI if name in medians]
    judged = []
    if "gloo" in medians:
        judged.append(case.row(nbytes, medians, own / medians["gloo"], "gloo", 0.5))
    if mpi:
        judged.append(case.row(nbytes, medians, own / min(mpi), "MPI", 1.0))
    return judged


_SMALL = (8, 1 << 10, 4 << 10)
_ONE_RAIL = _ours("ddl one rail", DDL_RAILS="1")
CASES = (
    Case("a", "4 hosts x 2 ranks, 1 Gb/s", Shape(4, slots=2, rails=(GBIT,)), _near_bound),
    Case("b", "2 hosts, two rails of 1 Gb/s", Shape(2, rails=(GBIT, GBIT)), _over_one_rail, (_ours(), _ONE_RAIL)),
    Case("c", "2 hosts, 1 + 0.25 Gb/s", Shape(2, rails=(GBIT, GBIT // 4)), _share_of_sum, (_ours(), _ONE_RAIL)),
    Case(
        *("d", "2 racks x 2 hosts x 2 ranks, 1 Gb/s, uplinks of 0.25", TWO_RACKS, _over_flat_ring),
        ours=(_ours(DDL_DIMENSIONS="2x2x2"), _ours("ddl ring", DDL_ALGORITHM="ring")),
    ),
    Case("e", "4 hosts x 2 ranks, unshaped", FOUR_HOSTS, _against_others, sizes=_SMALL),
    Case("e", "4 hosts x 2 ranks, 1 Gb/s", Shape(4, slots=2, rails=(GBIT,)), _against_others, sizes=_SMALL),
)


@dataclass
class CaseResult:
    """What the starts of one case gave."""

    samples: Dict[str, Dict[int, List[Sample]]] = field(default_factory=dict)  #: by contestant and size
    stream: Dict[int, float] = field(default_factory=dict)  #: median seconds of the pump, by size
    versions: Dict[str, str] = field(default_factory=dict)
    layouts: List[Dict[str, Any]] = field(default_factory=list)  #: what ranks of DDL said of their job
    processors: Processors = field(default_factory=Processors)  #: while DDL ran

    def medians(self, nbytes: int) -> Medians:
        """Return the median call of each contestant, all rounds pooled."""
        pooled = {name: [s for sample in of[nbytes] for s in sample.seconds] for name, of in self.samples.items()}
        return {name: quantile(sorted(seconds), 0.5) for name, seconds in pooled.items()}

    def cores(self, nbytes: int) -> float:
        """Return how many cores DDL's ranks used together, on average over their calls."""
        samples = self.samples["ddl"][nbytes]
        return sum(sample.cpu for sample in samples) / sum(sum(sample.seconds) for sample in samples)


def measure(
    case: Case,
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    mpi: Dict[str, Path],
    left_out: Dict[str, str],
) -> CaseResult:
    """Build the cluster of ``case`` and run everyone who can, in turn; who cannot is added to ``left_out``."""
    shape, measured = case.shape, CaseResult()
    slowest = min([rate for rate in (*shape.rails, shape.uplink) if rate is not None], default=4 * GBIT)
    pace = TimingPace(seconds, slowest / 8, overhead=1e-3, least=3)
    ranks = shape.hosts * shape.slots
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster(shape))
        setting = Conditions("allreduce", "float32", ranks, call_counts(sizes, pace), mpi, cluster)
        others = [contestants.find(name) for name in ("gloo", *MPI)]
        left_out.update(
            {contestant.name: contestant.why_not(setting) for contestant in others if contestant.why_not(setting)}
        )
        chosen = [*case.ours, *(contestant for contestant in others if contestant.name not in left_out)]
        _measure_stream(dataclasses.replace(setting, ranks=2), measured, left_out)
        progress = stack.enter_context(Progress())
        for number in range(rounds):
            for contestant in in_turn(chosen, number, rounds, progress):
                with measured.processors.watched(contestant.name == "ddl"):
                    written = start(contestant, setting)
                measured.versions[contestant.name] = written[0]["version"]
                measured.layouts += [written[0]["layout"]] if written[0]["layout"] else []
                for nbytes, sample in merge(number, written).items():
                    measured.samples.setdefault(contestant.name, {}).setdefault(nbytes, []).append(sample)
    return measured


def _measure_stream(setting: Conditions, measured: CaseResult, left_out: Dict[str, str]) -> None:
    pump = contestants.find("limit")
    reason = pump.why_not(setting)
    if reason:
        left_out["limit"] = reason
        return
    for nbytes, sample in merge(0, start(pump, setting)).items():
        measured.stream[nbytes] = quantile(sorted(sample.seconds), 0.5)


def rows(case: Case, sizes: Sequence[int], measured: CaseResult) -> List[Row]:
    """Judge; a target that is missed is explained by what was measured beside it."""
    judged = []
    for nbytes in sizes:
        for row in case.judge(case, nbytes, measured.medians(nbytes)):
            why = [row.note] if row.note else []
            if not row.met and nbytes in measured.stream:
                each_way = (
                    f"{duration(measured.stream[nbytes], 3)} ({8e-6 * nbytes / measured.stream[nbytes]:.0f} Mb/s)"
                )
                why.append(f"one TCP stream between two of the hosts takes {each_way} for as many bytes each way")
            if not row.met:
                why.append(f"in its calls DDL used {measured.cores(nbytes):.2f} of {os.cpu_count()} cores")
                why.append(f"{measured.processors.shares()['stolen']:.0%} of the processors' time was stolen")
            judged.append(dataclasses.replace(row, note="; ".join(why)))
    return judged
