"""The launchers that reach other hosts, by the names of ``--launcher``; in_pods.py has those of Kubernetes."""

from __future__ import annotations

from typing import Dict, Type

from ddl.launch.ask.config import RunConfig
from ddl.launch.launchers import ReachingLauncher
from ddl.launch.launchers.mpi import MpiLauncher
from ddl.launch.launchers.slurm import SlurmLauncher
from ddl.launch.launchers.ssh import SshLauncher

__all__ = ["REACHING", "launcher_of"]

REACHING: Dict[str, Type[ReachingLauncher]] = {each.name: each for each in (SshLauncher, MpiLauncher, SlurmLauncher)}


def launcher_of(config: RunConfig) -> ReachingLauncher:
    """Return the launcher of a job on other hosts."""
    return REACHING[config.launcher].of(config)
