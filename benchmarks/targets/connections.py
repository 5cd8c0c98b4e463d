"""Target h: connections of a rank grow with the number of dimensions, not with that of ranks.

Jobs of 16 and 64 ranks on this machine, each rank as if it were a host of its own. Large operations need several
connections to each of two neighbours in each dimension. Small ones need one to each rank at a distance of a power of
two: these few do grow with the ranks, by one when they double.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from math import prod
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from benchmarks.collectives.contestants import on_this_machine
from benchmarks.collectives.launch import run_all
from benchmarks.targets.plans import chosen
from benchmarks.targets.rows import Row
from ddl.plan import Collective, build

__all__ = ["FEW", "LARGE", "MANY", "SMALL", "count", "neighbours", "rows"]

FEW, MANY = ("16", "4x4", "4x2x2"), ("64", "8x8", "4x4x4")  #: layouts of 16 and 64 ranks, by number of dimensions
SMALL, LARGE = 8, 256 << 10  #: bytes of an operation of either kind


def count(dimensions: str) -> List[Dict[str, Any]]:
    """Run a job laid out so and return what each rank wrote: how many ``connections`` it has, and its layout."""
    ranks = prod(map(int, dimensions.split("x")))
    print(f"connections of {dimensions}", file=sys.stderr, flush=True)
    environ = {**os.environ, "DDL_SHM": "0", "DDL_DIMENSIONS": dimensions, "DDL_START_TIMEOUT": "300"}
    with tempfile.TemporaryDirectory(prefix="ddl-bench-") as directory:
        program = [sys.executable, "-m", "benchmarks.targets.connections_rank", directory, str(SMALL), str(LARGE)]
        command = on_this_machine(ranks, program, environ)
        return run_all(f"connections of {dimensions}", [command], Path(directory), ranks)


def neighbours(layout: Mapping[str, Any], nbytes: int) -> int:
    """Return with how many ranks a rank of such a job exchanges messages in an all-reduce of ``nbytes``, at most."""
    topology, line = chosen(layout, nbytes)
    return max(len(build(Collective.ALLREDUCE, line.algorithm, topology, rank).peers) for rank in range(topology.size))


def rows(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> List[Row]:
    """Judge 64 ranks by 16: each neighbour (two a dimension) may take as many connections as at 16."""
    listed = []
    for dimensions, (few, many) in enumerate(zip(FEW, MANY), start=1):
        most = {name: max(rank["connections"] for rank in results[name]) for name in (few, many)}
        small = {name: neighbours(results[name][0]["layout"], SMALL) for name in (few, many)}
        large = {name: neighbours(results[name][0]["layout"], LARGE) for name in (few, many)}
        allowed = small[many] + 2 * dimensions * (most[few] - small[few]) / large[few]
        counts = [
            f"{name}: {most[name]}, of which {small[name]} for small operations, the rest to {large[name]} neighbours"
            for name in (few, many)
        ]
        what = f"connections of a rank, {many} ranks"
        row = Row("h", what, most[many] / allowed, f"as by {few}", 1, note="; ".join(counts))
        listed.append(dataclasses.replace(row, ours=most[many], bound=allowed, counted=True))
    return listed
