"""``ddl desk up``, ``ddl desk enter``: a cluster on this machine, for people. What it has: docs/cluster.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Optional, Sequence

from ddl.errors import ConfigError
from ddl.tools.desk.cluster import Cluster
from ddl.tools.desk.leftovers import desks
from ddl.tools.desk.namespaces import entering
from ddl.tools.desk.shape import Shape, parse_rate
from ddl.tools.desk.system import ClusterError
from ddl.tools.progress import Progress

__all__ = ["add_arguments", "run"]


def _rate(text: str) -> Optional[int]:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add ``up`` and ``enter``."""
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    up = commands.add_parser("up", help="build a cluster and keep it until Ctrl-C")
    up.add_argument("--hosts", type=int, default=2)
    up.add_argument("--racks", type=int, default=1)
    up.add_argument("--rate", type=_rate, metavar="RATE", help="of rail 0: 1gbit, 250mbit, … or max (the default)")
    up.add_argument("--rail", type=_rate, metavar="RATE", action="append", default=[], help="one more rail, of RATE")
    up.add_argument("--uplink", type=_rate, metavar="RATE", help="between a rack and the others")
    up.set_defaults(act=_up)
    enter = commands.add_parser("enter", help="a shell, or a program, on a host of a cluster that is up")
    enter.add_argument("--desk", type=Path, metavar="DIRECTORY", help="of the cluster, if several are up")
    enter.add_argument("host")
    enter.add_argument("program", nargs=argparse.REMAINDER)
    enter.set_defaults(act=_enter)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked for; return the exit status."""
    status: int = arguments.act(arguments)
    return status


def _up(arguments: argparse.Namespace) -> int:
    rails = (arguments.rate, *arguments.rail)
    try:
        shape = Shape(arguments.hosts, arguments.racks, rails=rails, uplink=arguments.uplink)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        with Progress(after=5.0, name="ddl desk") as progress:
            cluster = stack.enter_context(Cluster(shape, progress))
        print(f"{len(cluster.hosts)} hosts, built in {time.monotonic() - begin:.2f} s")
        for number, host in enumerate(cluster.hosts):
            addresses = "  ".join(cluster.address(host, rail) for rail in range(len(rails)))
            print(f"  {host}  rack {cluster.shape.rack(number)}  {addresses}")
        print("go there:  ddl desk enter node1 [PROGRAM …]")
        print(f"or:        ssh -F {cluster.ssh_config} node1")
        print("Ctrl-C takes it down.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


def _enter(arguments: argparse.Namespace) -> int:
    up = [desk for desk, alive in desks() if alive]
    if arguments.desk is None and len(up) != 1:
        raise ClusterError(
            f"several clusters are up, say --desk: {' '.join(map(str, up))}" if up else "no cluster is up"
        )
    line = entering(arguments.desk or up[0], arguments.host, arguments.program or [os.environ.get("SHELL", "sh")])
    os.execvp(line[0], line)
