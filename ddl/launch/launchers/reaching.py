"""The launchers that reach other hosts, by the names of ``--launcher``; k8s and pods go ways of their own."""

from __future__ import annotations

from typing import Dict, Type

from ddl.launch.ask.config import RunConfig
from ddl.launch.launchers import Launcher
from ddl.launch.launchers.mpi import Mpi
from ddl.launch.launchers.slurm import Slurm
from ddl.launch.launchers.ssh import Ssh

__all__ = ["REACHING", "launcher_of"]

REACHING: Dict[str, Type[Launcher]] = {"ssh": Ssh, "mpi": Mpi, "slurm": Slurm}


def launcher_of(config: RunConfig) -> Launcher:
    """Return the launcher of a job on other hosts."""
    return REACHING[config.launcher].of(config)
