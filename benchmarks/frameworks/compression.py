"""Training steps whose gradients cross a slow network, by ``compression``: two hosts of a lab cluster, at 1 Gb/s.

A recommender's embedding tables, whose gradients are dense, or linear layers and one row a batch: nearly all of a step
is the averaging of gradients. All ways train side by side in one job and take turns, step by step; a step takes as long
as its slowest rank. Hosts share no cores, as if they were two machines. Exit status: 0; 1 if int8 is less than LEAST
times as fast as float32. Needs root (docs/cluster.md), two cores and PyTorch; half a minute.

    python -m benchmarks.frameworks.compression [--model linear] [--optimizer Adam] [--no-overlap-update]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Dict, List

from benchmarks import ROOT
from ddl.text.columns import aligned
from ddl.text.units import duration
from lab import Cluster, Shape

#: With overlap_update. 33 bytes for 128 make 3.88 at most.
LEAST = 3.5
METHODS = ("none", "bf16", "int8", "powersgd")
#: The program of a rank: prints for each way the seconds of its steps, and the bytes that a rank sent in one.
PROGRAM = """
import json, os, sys, time
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[int(os.environ["DDL_RANK"])::2])
import torch
import ddl_torch as ddl

ddl.init()
kind, make, methods = sys.argv[1], getattr(torch.optim, sys.argv[2]), sys.argv[3].split(",")
width, layers, rounds, overlap = map(int, sys.argv[4:])
control = ddl.split(0)
ways = {}
for method in methods:
    torch.manual_seed(1)
    if kind == "linear":
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)])
    else:
        model = torch.nn.ModuleList([torch.nn.Embedding(width, width) for _ in range(layers)])
    ways[method] = model, ddl.DistributedOptimizer(
        make(model.parameters(), lr=0.01), model.named_parameters(), compression=method, overlap_update=bool(overlap)
    )
generator = torch.Generator().manual_seed(ddl.rank())
x = torch.randn(1, width, generator=generator)
ids = torch.randint(width, (layers, 4), generator=generator)

def loss(model):
    if kind == "linear":
        return model(x).square().mean()
    return sum(table(rows).square().mean() for table, rows in zip(model, ids))

def step(method):
    model, optimizer = ways[method]
    optimizer.zero_grad()
    control.barrier()
    begin = time.perf_counter()
    loss(model).backward()
    optimizer.step()
    return time.perf_counter() - begin

seconds = {method: [] for method in methods}
for number in range(rounds + 2):
    for method in methods:
        taken = ddl.allreduce(torch.tensor(step(method), dtype=torch.float64), op=ddl.Max).item()
        if number >= 2:
            seconds[method].append(taken)
if ddl.rank() == 0:
    print(json.dumps(seconds))
"""


def measure(options: argparse.Namespace) -> Dict[str, List[float]]:
    """Return the seconds of each step, by compression, of one job on a new cluster."""
    numbers = [options.width, options.layers, options.rounds, int(options.overlap_update)]
    arguments = ["-c", PROGRAM, options.model, options.optimizer, ",".join(METHODS), *map(str, numbers)]
    with Cluster(Shape(2, slots=1, rails=(10**9,))) as cluster:
        line = [sys.executable, "-m", "ddl.launch", "--no-prefix", "-H", cluster.with_slots(), sys.executable]
        # A host has one core of a machine with two: who waits awake takes it from the computation.
        environ = {"PYTHONPATH": str(ROOT), "DDL_SPIN_US": "0", "OMP_NUM_THREADS": "1"}
        out = cluster.run(cluster.hosts[0], [*line, *arguments], env=environ, cwd=ROOT, timeout=170).stdout
    seconds: Dict[str, List[float]] = json.loads(out.strip().splitlines()[-1])
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=("tables", "linear"), default="tables", help="(%(default)s)")
    parser.add_argument("--optimizer", default="SGD", help="of torch.optim (%(default)s)")
    parser.add_argument("--no-overlap-update", dest="overlap_update", action="store_false", help="all at the end")
    parser.add_argument("--width", type=int, default=1024, help="rows and columns of each (%(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="or tables (%(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="steps of each way that count (%(default)s)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the seconds there")
    options = parser.parse_args()
    seconds = measure(options)
    medians = {method: statistics.median(taken) for method, taken in seconds.items()}
    nbytes = 4 * options.layers * options.width**2
    print(f"{nbytes / 1e6:.0f} MB of gradients, two hosts of one rank, 1 Gb/s:")
    rows = [["compression", "step", "least", "most", "times as fast"]]
    for method, taken in seconds.items():
        ratio = f"{medians['none'] / medians[method]:.2f}"
        rows.append([method, duration(medians[method]), duration(min(taken)), duration(max(taken)), ratio])
    print("\n".join(aligned(rows)))
    if options.json:
        record = {
            "bytes": nbytes,
            "options": {k: v for k, v in vars(options).items() if k != "json"},
            "seconds": seconds,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if medians["none"] / medians["int8"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
