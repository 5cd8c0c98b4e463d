"""The launchers that reach other hosts, by the names of ``--launcher``; k8s and pods go ways of their own."""

from __future__ import annotations

from typing import Dict, Type

from ddl.launch.ask.config import RunConfig
from ddl.launch.launchers import Launcher
from ddl.launch.launchers.mpi import MpiLauncher
from ddl.launch.launchers.slurm import SlurmLauncher
from ddl.launch.launchers.ssh import SshLauncher

__all__ = ["REACHING", "launcher_of"]

REACHING: Dict[str, Type[Launcher]] = {"ssh": SshLauncher, "mpi": MpiLauncher, "slurm": SlurmLauncher}


def launcher_of(config: RunConfig) -> Launcher:
    """Return the launcher of a job on other hosts."""
    return REACHING[config.launcher].of(config)
