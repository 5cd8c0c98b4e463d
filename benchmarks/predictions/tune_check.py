"""Compares a table of ``ddl tune`` with the built-in one: jobs use them in turn, on four hosts of a lab cluster.

Each job is started anew; its time for a size is the median of its all-reduces, of which each follows a barrier and
takes as long as its slowest rank. Exit status: 0; 1 if a size is slower by the table than by what is built in, by more
than NOISE. Needs root (docs/cluster.md); two minutes.

    python -m benchmarks.predictions.tune_check
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from benchmarks import ROOT
from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.sizes import parse_sizes
from lab import Cluster, Shape

SHAPE = Shape(4, slots=2, rails=(10**9,))
NOISE = 1.25  #: a job's median differs by so much between starts here, at 64 KiB
#: The program of a rank: prints a median of seconds for each size.
PROGRAM = """
import json, sys, time
import numpy as np
import ddl
ddl.init()
control, medians = ddl.split(0), {}
for nbytes in map(int, sys.argv[1].split(",")):
    x, seconds = np.zeros(nbytes // 4, np.float32), []
    for _ in range(3 + max(10, min(150, 10_000_000 // nbytes))):
        control.barrier()
        begin = time.perf_counter()
        ddl.allreduce_(x, op=ddl.Sum)
        seconds.append(time.perf_counter() - begin)
    medians[nbytes] = float(np.median(control.allreduce(np.array(seconds[3:]), op=ddl.Max)))
if ddl.rank() == 0:
    print(json.dumps(medians))
"""


def run(cluster: Cluster, command: Sequence[str], *options: str, **more: str) -> str:
    """Run a command on the first host for two ranks on each and return its output."""
    # All hosts share the machine's few cores, and no rank knows it: a rank that spins takes another's core.
    environ = {"PYTHONPATH": str(ROOT), "DDL_SPIN_US": "0", **more}
    line = [sys.executable, "-m", *command, "-H", cluster.with_slots(), *options]
    return cluster.run("node1", line, env=environ, cwd=ROOT, timeout=170).stdout


def compare(cluster: Cluster, table: str, wanted: List[int], starts: int) -> Dict[int, List[Tuple[float, float]]]:
    """Return for each size and start the seconds by the built-in table and by ``table``."""
    pairs: Dict[int, List[Tuple[float, float]]] = {nbytes: [] for nbytes in wanted}
    for _ in range(starts):
        program = ("--no-prefix", sys.executable, "-c", PROGRAM, ",".join(map(str, wanted)))
        default, tuned = (json.loads(run(cluster, ["ddl.launch"], *program, DDL_TUNED=by)) for by in ("off", table))
        for nbytes, both in pairs.items():
            both.append((default[str(nbytes)], tuned[str(nbytes)]))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("64,1K,4K,64K,256K,1M"))
    parser.add_argument("--starts", type=int, default=6, help="of each")
    parser.add_argument("--seconds", default="40", help="for ddl tune")
    arguments = parser.parse_args()
    with Cluster(SHAPE) as cluster, tempfile.TemporaryDirectory(prefix="ddl-tune-") as directory:
        table = str(Path(directory, "tuned.toml"))
        print(run(cluster, ["ddl.tools", "tune", "--even-if-busy"], "--seconds", arguments.seconds, "--output", table))
        pairs = compare(cluster, table, arguments.sizes, arguments.starts)
    rows, worst = [("size", "built-in", "tuned", "built-in / tuned")], 0.0
    for nbytes, both in pairs.items():
        default, tuned = (statistics.median(seconds) for seconds in zip(*both))
        worst = max(worst, tuned / default)
        rows.append((exact_bytes_text(nbytes), duration(default), duration(tuned), f"{default / tuned:.2f}"))
    print("\n".join(aligned(rows)))
    return int(worst > NOISE)


if __name__ == "__main__":
    sys.exit(main())
