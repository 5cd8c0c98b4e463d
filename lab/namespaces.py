"""Enters a host of a cluster. It needs only the cluster's directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List, Sequence, Union

from lab.system import ClusterError, cgroups

__all__ = ["Where", "entering", "first_process"]

Where = Union[None, str, Path]  #: a working directory; None: this process's


def first_process(folder: Path, host: str) -> str:
    """Return the first process of a host, or of the fabric, by its id out here."""
    try:
        return (folder / f"{host}.pid").read_text().strip()
    except FileNotFoundError:
        raise ClusterError(f"{host} is off, or no host of {folder}") from None


def entering(folder: Path, host: str, program: Sequence[str], cwd: Where = None) -> List[str]:
    """Return a command line that enters the host's namespaces, and then its cgroup, to be frozen and killed with it.

    nsenter itself stays outside. It must live to reap the program, or the kernel could not end the host. nsenter passes
    no signal on, so the kernel kills the program when nsenter is killed.
    """
    pid, directory = first_process(folder, host), os.path.abspath(cwd or ".")
    enter = ["nsenter", "-t", pid, "-n", "-m", "-u", "-i", "-p", f"--wdns={directory}"]
    join = ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(cgroups() / folder.name / host / "cgroup.procs")]
    return [*enter, "--", "setpriv", "--pdeathsig", "KILL", *join, *program]
