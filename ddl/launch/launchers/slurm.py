"""Slurm: inside an allocation, ``srun`` starts one agent per node, with all cores of the node that the job has."""

from __future__ import annotations

import os
import shutil
import sys
from typing import List, Mapping, Optional, Tuple

from ddl.errors import ConfigError
from ddl.launch.hosts import Host, expand_counts, expand_nodes
from ddl.launch.launchers import Start
from ddl.launch.placement import Placement

__all__ = ["allocation", "starts"]


def allocation(environ: Mapping[str, str]) -> Optional[Tuple[Host, ...]]:
    """Return the nodes of the allocation that we are in, with its tasks as slots; None outside of one."""
    nodes, tasks = environ.get("SLURM_JOB_NODELIST"), environ.get("SLURM_TASKS_PER_NODE")
    if not nodes:
        return None
    names = expand_nodes(nodes)
    counts = expand_counts(tasks) if tasks else []
    return tuple(Host(name, counts[at] if len(counts) == len(names) else None) for at, name in enumerate(names))


def starts(placement: Placement, environ: Mapping[str, str]) -> List[Start]:
    """Return what starts the agents. ConfigError outside an allocation, or if a host is not in it."""
    nodes = allocation(environ)
    path = shutil.which("srun", path=environ.get("PATH", os.defpath))
    if nodes is None or path is None:
        raise ConfigError(
            "--launcher slurm works inside an allocation (salloc, sbatch) on a machine that has srun; "
            + ("SLURM_JOB_NODELIST is not set" if nodes is None else "there is no srun on the PATH")
        )
    names = [node.name for node in nodes]
    strange = [host for host in placement.hosts if host not in names]
    if strange:
        raise ConfigError(f"{', '.join(strange)}: not among the nodes of this allocation, {', '.join(names)}")
    if sorted(placement.hosts, key=names.index) != list(placement.hosts):
        raise ConfigError(f"Slurm numbers nodes as {','.join(names)}; name the hosts in that order")
    count = str(len(placement.hosts))
    command = [path, "--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--export", "ALL", "--mpi", "none"]
    command += ["--nodelist", ",".join(placement.hosts), "--kill-on-bad-exit=0", "--cpu-bind", "none", "--input"]
    command += ["none", *_cores(environ), sys.executable, "-m", "ddl.launch.remote"]
    return [Start(tuple(range(len(placement.hosts))), tuple(command), None, False, "srun")]


def _cores(environ: Mapping[str, str]) -> List[str]:
    """Return what asks for the agents' cores: a step gets one per task otherwise."""
    cores = environ.get("SLURM_JOB_CPUS_PER_NODE")
    return ["--cpus-per-task", str(min(expand_counts(cores)))] if cores else []
