"""Target g: every plan that ran is built again, out of what the jobs said of themselves, and proved."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence, Set, Tuple

from benchmarks.targets.rows import Row
from ddl._comm.group import discover
from ddl.plan import Collective, build
from ddl.plan.verify import verify
from ddl.topology import Topology
from ddl.tuning.select import Line, select

__all__ = ["chosen", "row"]


def chosen(layout: Mapping[str, Any], nbytes: int) -> Tuple[Topology, Line]:
    """Return the topology of a job that said this of itself, and the line that serves its all-reduce of ``nbytes``."""
    topology = discover(layout["hosts"], layout["dimensions"])
    lines = select(Collective.ALLREDUCE, topology, layout["algorithm"])
    return topology, next(line for line in lines if nbytes <= line.max_bytes)


def row(used: Iterable[Tuple[Mapping[str, Any], Sequence[int]]]) -> Row:
    """Prove the plans of all jobs, given what each said of itself and its sizes; ``PlanError`` if one is wrong."""
    jobs: Set[Tuple[Topology, str]] = set()
    for layout, sizes in used:
        for nbytes in sizes:
            topology, line = chosen(layout, nbytes)
            jobs.add((topology, line.algorithm))
    plans = 0
    for topology, algorithm in sorted(jobs, key=str):
        ranks = [build(Collective.ALLREDUCE, algorithm, topology, rank) for rank in range(topology.size)]
        plans += len(verify(ranks, in_place=True).steps)
    names = ", ".join(sorted(f"{algorithm} {topology}" for topology, algorithm in jobs))
    wanted = sum(topology.size for topology, _ in jobs)
    note = f"one for each rank of {len(jobs)} sets: {names}"
    return Row("g", "plans proved", plans / wanted, "plans", 1, at_most=False, ours=plans, counted=True, note=note)
