"""``python -m lab enter``: a shell, or a program, on a host of a cluster that is up."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Sequence

from lab.leftovers import clusters
from lab.namespaces import entering
from lab.system import ClusterError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the host and the program."""
    parser.add_argument("--cluster", type=Path, metavar="DIRECTORY", help="of the cluster, if several are up")
    parser.add_argument("host")
    parser.add_argument("program", nargs=argparse.REMAINDER)


def run(arguments: argparse.Namespace) -> int:
    """Become the program; it does not return."""
    up = [directory for directory, alive in clusters() if alive]
    if arguments.cluster is None and len(up) != 1:
        raise ClusterError(
            f"several clusters are up, say --cluster: {' '.join(map(str, up))}" if up else "no cluster is up"
        )
    line = entering(arguments.cluster or up[0], arguments.host, arguments.program or [os.environ.get("SHELL", "sh")])
    os.execvp(line[0], line)
