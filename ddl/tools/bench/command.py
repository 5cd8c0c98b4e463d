"""``ddl bench allreduce``: runs a job on the hosts that times one collective of DDL, and prints a table.

ddlrun runs the job, and worker.py is its program, so the options for hosts are those of ddlrun. Status 0; 1 if the job
failed or a value was wrong; 2 for bad usage. docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
from typing import Sequence

from ddl.errors import ConfigError
from ddl.tools.bench.names import COLLECTIVES, DTYPES
from ddl.tools.measuring import add_job_arguments, run_job
from ddl.tools.sizes import parse_sizes

__all__ = ["add_arguments", "run"]

SIZES = "8,1K,64K,256K,1M,4M,32M"


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the options of ``ddl bench``."""
    add = parser.add_argument
    add("collective", choices=COLLECTIVES, help=f"one of {', '.join(COLLECTIVES)}")
    add_job_arguments(parser)
    add(
        "--sizes",
        type=parse_sizes,
        default=parse_sizes(SIZES),
        metavar="8,64K,4M",
        help=f"bytes of the buffer (default {SIZES})",
    )
    add("--dtype", choices=sorted(DTYPES), default="float32", help="bfloat16 needs torch")
    add("--seconds", type=float, default=1.0, metavar="N", help="seconds for each size, about (default 1)")
    add("--json", metavar="FILE", help="write the figures to this file, on rank 0's host")


def run(arguments: argparse.Namespace) -> int:
    """Run the job; return the exit status."""
    if not 0 < arguments.seconds < 1e6:
        raise ConfigError(f"--seconds {arguments.seconds:g}: it must be a number of seconds above 0")
    if (arguments.collective, arguments.dtype) == ("reducescatter", "bfloat16"):
        raise ConfigError("reducescatter returns numpy arrays here, and numpy has no bfloat16; use float16")
    task = {
        "collective": arguments.collective,
        "dtype": arguments.dtype,
        "sizes": arguments.sizes,
        "seconds": arguments.seconds,
        "json": os.path.abspath(arguments.json) if arguments.json else "",
    }
    return run_job(arguments, "ddl.tools.bench.worker", task)
