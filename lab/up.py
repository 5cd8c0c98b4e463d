"""``python -m lab up``: builds a cluster and keeps it until Ctrl-C. What it has: docs/cluster.md."""

from __future__ import annotations

import argparse
import contextlib
import signal
import time
from typing import Optional, Sequence

from ddl.errors import ConfigError
from ddl.tools.progress import Progress
from lab.cluster import Cluster
from lab.shape import Shape, parse_rate

__all__ = ["add_arguments", "run"]


def _rate(text: str) -> Optional[int]:
    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_arguments(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Add the shape of the cluster."""
    add = parser.add_argument
    add("--hosts", type=int, default=2)
    add("--racks", type=int, default=1)
    add("--rate", type=_rate, metavar="RATE", help="of rail 0: 1gbit, 250mbit, … or max (the default)")
    add("--rail", type=_rate, metavar="RATE", action="append", default=[], help="one more rail, of RATE")
    add("--uplink", type=_rate, metavar="RATE", help="between a rack and the others")
    add("--ip", choices=("4", "6", "both"), default="4", help="which addresses the hosts have (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Build the cluster, say how to enter it, and wait for Ctrl-C; return the exit status."""
    rails = (arguments.rate, *arguments.rail)
    try:
        shape = Shape(arguments.hosts, arguments.racks, rails=rails, uplink=arguments.uplink, ip=arguments.ip)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        with Progress(after=5.0, name="lab") as progress:
            cluster = stack.enter_context(Cluster(shape, progress))
        print(f"{len(cluster.hosts)} hosts, built in {time.monotonic() - begin:.2f} s")
        for number, host in enumerate(cluster.hosts):
            addresses = "  ".join(text for rail in range(len(rails)) for text in cluster.addresses(host, rail))
            print(f"  {host}  rack {cluster.shape.rack(number)}  {addresses}")
        print("go there:  python -m lab enter node1 [PROGRAM …]")
        print(f"or:        ssh -F {cluster.ssh_config} node1")
        print("Ctrl-C takes it down.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0
