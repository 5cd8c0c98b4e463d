"""Slurm: inside an allocation, ``srun`` starts one agent per node, with all cores of the node that the job has.

All agents are one step of Slurm's, which ends as a whole: by scancel, or when Slurm takes one of its nodes for dead. In
an elastic job each agent is a step of its own (``apart``), so that one can end, and begin anew, without the others.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

from ddl.errors import ConfigError
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import Host, expand_counts, expand_nodes
from ddl.launch.ask.placement import Placement
from ddl.launch.launchers import Start

__all__ = ["SlurmLauncher"]

_AGENT = (sys.executable, "-m", "ddl.launch.agent.remote")


@dataclass(frozen=True)
class SlurmLauncher:
    """``apart``: each agent is started by an srun of its own."""

    apart: bool = False
    name: ClassVar[str] = "slurm"
    takes: ClassVar[Tuple[str, ...]] = ()
    one_by_one: ClassVar[bool] = True

    @classmethod
    def of(cls, config: RunConfig) -> SlurmLauncher:
        return cls(apart=config.elastic is not None)

    @staticmethod
    def allocated(environ: Mapping[str, str]) -> Optional[Tuple[Host, ...]]:
        """Return the nodes of the allocation that we are in, with its tasks as slots; None outside of one."""
        nodes, tasks = environ.get("SLURM_JOB_NODELIST"), environ.get("SLURM_TASKS_PER_NODE")
        if not nodes:
            return None
        names = expand_nodes(nodes)
        counts = expand_counts(tasks) if tasks else []
        return tuple(Host(name, counts[at] if len(counts) == len(names) else None) for at, name in enumerate(names))

    def starts(self, placement: Placement, environ: Mapping[str, str]) -> List[Start]:
        nodes = self.allocated(environ)
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
        cores = _cores(names, environ)
        if self.apart:
            # --overlap: what is left of a lost agent's step may still hold cores. --no-kill: see docs/ddlrun.md.
            more = ("--overlap", "--no-kill")
            return [
                Start((number,), (path, *_step([host], cores), *more, *_AGENT), number, False, "srun")
                for number, host in enumerate(placement.hosts)
            ]
        if sorted(placement.hosts, key=names.index) != list(placement.hosts):
            raise ConfigError(f"Slurm numbers nodes as {','.join(names)}; name the hosts in that order")
        numbers = tuple(range(len(placement.hosts)))
        return [Start(numbers, (path, *_step(placement.hosts, cores), *_AGENT), None, False, "srun")]


def _step(hosts: Sequence[str], cores: Mapping[str, int]) -> List[str]:
    """Return srun's options for one agent on each of these hosts, which ends no other one when it ends."""
    count = str(len(hosts))
    options = ["--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--nodelist", ",".join(hosts)]
    options += ["--kill-on-bad-exit=0", "--wait=0", "--export", "ALL", "--mpi", "none", "--cpu-bind", "none"]
    options += ["--input", "none"]
    if cores:  # a step gets one per task otherwise
        options += ["--cpus-per-task", str(min(cores[host] for host in hosts))]
    return options


def _cores(names: Sequence[str], environ: Mapping[str, str]) -> Dict[str, int]:
    """Return how many cores of each node the job has; nothing where Slurm does not say."""
    counts = environ.get("SLURM_JOB_CPUS_PER_NODE")
    return dict(zip(names, expand_counts(counts))) if counts else {}
