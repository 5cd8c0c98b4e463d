"""``python -m benchmarks WHAT``: chooses what is measured; only the module that is asked for is loaded."""

from __future__ import annotations

import sys
from typing import Dict, Tuple

from benchmarks import machine
from ddl.tools import cli

_COLLECTIVES = "benchmarks.collectives.command"
KINDS: Dict[str, Tuple[str, str]] = {
    "allreduce": (_COLLECTIVES, "time the sum of all ranks' buffers, on every rank, in place"),
    "reducescatter": (_COLLECTIVES, "time the sum of all ranks' buffers, a share of it on each rank"),
    "allgather": (_COLLECTIVES, "time the shares of all ranks, joined, on every rank"),
    "broadcast": (_COLLECTIVES, "time the buffer of one rank, on every rank, in place"),
    "alltoall": (_COLLECTIVES, "time a block of each rank's buffer to each other rank"),
    "targets": ("benchmarks.targets.command", "see whether DDL reaches its targets, with others in the same run"),
    "waking": ("benchmarks.waking.command", "time how soon a rank that sleeps goes on, against a raw futex"),
    "churn": ("benchmarks.churn.command", "kill ranks of trainings, and see how long the others stand still"),
    "scrape": ("benchmarks.scrape", "see what `ddlrun --metrics` takes, of jobs of up to 512 ranks"),
    "training": ("benchmarks.training.command", "time a training step, against DistributedDataParallel over gloo"),
    "stragglers": (
        "benchmarks.stragglers.command",
        "count false alarms about slow ranks, and see how soon it tells",
    ),
    "watching": ("benchmarks.watching.command", "see what it costs to be recorded, and watched by page and timeline"),
    "gpu": ("benchmarks.gpu.command", "see on a GPU machine what works, and how fast; `make gpu` builds DDL first"),
}

if __name__ == "__main__":
    if sys.argv[1:] and not {"-h", "--help"} & set(sys.argv):
        machine.say_if_busy()
    about = "Measure DDL against other libraries. Explained in docs/benchmarks.md."
    sys.exit(cli.run("python -m benchmarks", about, KINDS, sys.argv[1:]))
