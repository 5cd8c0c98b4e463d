"""A cluster on this machine, for people: ``desk.py up --hosts 4 --rate 1gbit``, ``desk.py enter node1``.

What is built and how it goes away: hosts.py. What can be done with it: docs/cluster.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Optional, Sequence

from hosts import Cluster, ClusterError, Shape, desks, entering


def _rate(text: str) -> Optional[int]:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text)
    if text != "max" and found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate such as 250mbit, 2.5gbit or max")
    return int(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2]]) if found else None


def _up(arguments: argparse.Namespace) -> int:
    rails = (arguments.rate, *arguments.rail)
    begin = time.monotonic()
    with Cluster(Shape(arguments.hosts, arguments.racks, rails=rails, uplink=arguments.uplink)) as cluster:
        print(f"{len(cluster.hosts)} hosts, built in {time.monotonic() - begin:.2f} s")
        for number, host in enumerate(cluster.hosts):
            addresses = "  ".join(cluster.address(host, rail) for rail in range(len(rails)))
            print(f"  {host}  rack {cluster.shape.rack(number)}  {addresses}")
        print(f"go there:  {shlex.join([sys.executable, sys.argv[0], 'enter', 'node1'])} [PROGRAM …]")
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


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description="A cluster of hosts on this machine; docs/cluster.md.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
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
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.act(arguments)
    except (ClusterError, ValueError) as error:
        print(f"desk: {error}", file=sys.stderr)
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
