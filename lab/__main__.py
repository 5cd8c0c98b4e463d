"""``python -m lab up`` and ``python -m lab enter``: a cluster on this machine, for people."""

import sys

from ddl.tools import cli

TOOLS = {
    "up": ("lab.up", "build a cluster of hosts, racks and rails on this machine, and keep it until Ctrl-C"),
    "enter": ("lab.enter", "run a shell, or a program, on a host of a cluster that is up"),
}

if __name__ == "__main__":
    sys.exit(cli.run("python -m lab", "A cluster on this machine. Explained in docs/cluster.md.", TOOLS, sys.argv[1:]))
