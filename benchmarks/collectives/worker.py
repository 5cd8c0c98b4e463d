"""What runs on every rank of a contestant's job: checks values, times them, and writes what it saw to ``rank.N.json``.

It is started by its path, also by a Python in which DDL is not installed (those of Open MPI and MPICH).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # the checkout, in place of this folder

from benchmarks.collectives.call_counts import parse_call_counts
from benchmarks.collectives.libraries import layout_of, load
from benchmarks.distance import Distance
from ddl.tools.bench.library import Ddl
from ddl.tools.bench.loop import measure
from ddl.tools.bench.values import COLLECTIVES, DTYPES, CollectiveCall


def main() -> None:
    """Time all sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--collective", required=True, choices=COLLECTIVES)
    parser.add_argument("--dtype", required=True, choices=sorted(DTYPES))
    parser.add_argument("--calls", required=True, type=parse_call_counts, help="bytes:calls:warmup, for each size")
    parser.add_argument("--output", required=True, type=Path, help="directory for rank.N.json")
    parser.add_argument("--probe-library", default="", help="native/probe.cc, compiled; without it no distances")
    parser.add_argument("--probe", default="", help="file of zeros that the ranks share for it")
    arguments = parser.parse_args()
    library = load(arguments.library)
    distance = Distance(arguments.probe_library, arguments.probe, library.rank).round_trip
    sizes = {}
    for nbytes, calls, warmup in arguments.calls:
        work = CollectiveCall(arguments.collective, arguments.dtype, nbytes // DTYPES[arguments.dtype], library.size)
        sizes[str(nbytes)] = measure(library, work, calls, warmup, distance)
    layout = layout_of() if isinstance(library, Ddl) else {}
    written = {"rank": library.rank, "version": library.version, "layout": layout, "sizes": sizes}
    (arguments.output / f"rank.{library.rank}.json").write_text(json.dumps(written))
    library.finish()


if __name__ == "__main__":
    main()
