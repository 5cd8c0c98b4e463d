"""``ddl bench WHAT``: chooses what is measured; a module per kind, loaded when it is asked for."""

from __future__ import annotations

import argparse
import importlib
from typing import Dict, Sequence, Tuple

__all__ = ["add_arguments", "run"]

_COLLECTIVES = "ddl.tools.bench.collectives"
KINDS: Dict[str, Tuple[str, str]] = {
    "allreduce": (_COLLECTIVES, "the sum of every rank's buffer, on every rank, in place"),
    "reducescatter": (_COLLECTIVES, "the sum of every rank's buffer, a share of it on each rank"),
    "allgather": (_COLLECTIVES, "the shares of all ranks, joined, on every rank"),
    "broadcast": (_COLLECTIVES, "one rank's buffer, on every rank, in place"),
    "alltoall": (_COLLECTIVES, "a block of each rank's buffer to each other rank"),
    "targets": ("ddl.tools.bench.targets.command", "whether DDL reaches its targets, with others in the same run"),
    "waking": ("ddl.tools.bench.waking", "how soon a rank that sleeps goes on, against a raw futex"),
    "training": ("ddl.tools.bench.training", "a training step, against DistributedDataParallel over gloo"),
}


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add one subcommand per kind; ``rest`` is what follows ``bench`` on the command line."""
    kinds = parser.add_subparsers(metavar="WHAT", dest="kind", required=True)
    asked = next((word for word in rest if not word.startswith("-")), "")
    for name, (module, text) in KINDS.items():
        subparser = kinds.add_parser(
            name, help=text, description=f"Measure {name}: {text}. Explained in docs/benchmarks.md."
        )
        if name == asked:
            importlib.import_module(module).add_arguments(subparser)


def run(arguments: argparse.Namespace) -> int:
    """Run what was asked for and return its exit status."""
    status: int = importlib.import_module(KINDS[arguments.kind][0]).run(arguments)
    return status
