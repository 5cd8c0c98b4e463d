"""``ddl tune``: runs a job on the hosts that measures which algorithm serves which size best, and keeps the table.

ddlrun runs the job, and worker.py is its program, so the options for hosts are those of ddlrun. Status 0; 1 if the job
failed, or if hosts were busy with other things; 2 for bad usage. docs/tune.md.
"""

from __future__ import annotations

import argparse
import os
from typing import Sequence

from ddl.errors import ConfigError
from ddl.tools.measuring import add_job_arguments, run_job
from ddl.tools.sizes import parse_sizes
from ddl.tuning.measure.scope import COLLECTIVES, SIZES

__all__ = ["add_arguments", "run"]

_NAMES = tuple(collective.name.lower() for collective in COLLECTIVES)
#: Variables that would choose algorithms have no effect while they are measured.
_UNDISTURBED = ("DDL_TUNED=off", "DDL_TUNE_SECONDS=", "DDL_ALGORITHM=", "DDL_DETERMINISTIC=")


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl tune``."""
    add_job_arguments(parser)
    add = parser.add_argument
    add(
        "--sizes", type=parse_sizes, default=list(SIZES), metavar="8,64K,4M", help="default: 8 bytes to 64 MiB, times 4"
    )
    add("--collectives", default="allreduce", metavar="NAME,...", help=f"of {', '.join(_NAMES)}; default: allreduce")
    add("--seconds", type=float, default=40.0, metavar="N", help="how long to measure, about (40)")
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the arrays are; cuda: rank r of a host uses its GPU number r, modulo the number of GPUs",
    )
    add("--even-if-busy", action="store_true", help="keep what was measured while other programs ran on the hosts")
    add("--output", metavar="FILE", help="write to this file, on rank 0's host; default: where jobs look for it")


def run(arguments: argparse.Namespace) -> int:
    """Run the job; return the exit status."""
    collectives = arguments.collectives.split(",")
    for name in collectives:
        if name not in _NAMES:
            raise ConfigError(f"--collectives {name}: it cannot be tuned; use a list of {', '.join(_NAMES)}")
    if not 0 < arguments.seconds < 1e6:
        raise ConfigError(f"--seconds {arguments.seconds:g}: it must be a number of seconds above 0")
    task = {
        "collectives": list(dict.fromkeys(collectives)),
        "sizes": arguments.sizes,
        "seconds": arguments.seconds,
        "device": arguments.device,
        "even_if_busy": arguments.even_if_busy,
        "output": os.path.abspath(arguments.output) if arguments.output else "",
    }
    if arguments.mode and arguments.mode[0].isalpha():
        raise ConfigError(
            f"--mode {arguments.mode}: a letter chooses algorithms, but here they are measured; give dimensions only"
        )
    return run_job(arguments, "ddl.tools.tune.worker", task, _UNDISTURBED)
