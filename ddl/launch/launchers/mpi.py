"""Open MPI's or MPICH's ``mpiexec`` on the PATH: it starts one agent per host. MPI does nothing else.

The invitation goes through the environment, which both send over their own connections and never put on a command line.
Open MPI must be told which variables to send. It must also be told not to bind each agent, with its ranks, to one core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import ClassVar, List, Mapping, Optional, Tuple

from ddl.errors import ConfigError
from ddl.launch.agent.control import INVITATION
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import Host
from ddl.launch.ask.placement import Placement
from ddl.launch.launchers import Start

__all__ = ["MpiLauncher"]

_AGENT = (sys.executable, "-m", "ddl.launch.agent.remote")


class MpiLauncher:
    """All agents are one job of MPI's, so none can come later."""

    name: ClassVar[str] = "mpi"
    takes: ClassVar[Tuple[str, ...]] = ()
    one_by_one: ClassVar[bool] = False

    @classmethod
    def of(cls, config: RunConfig) -> MpiLauncher:
        return cls()

    @staticmethod
    def allocated(environ: Mapping[str, str]) -> Optional[Tuple[Host, ...]]:
        return None

    def starts(self, placement: Placement, environ: Mapping[str, str]) -> List[Start]:
        path = shutil.which("mpiexec", path=environ.get("PATH", os.defpath))
        if path is None:
            raise ConfigError(
                "there is no mpiexec on the PATH; install Open MPI or MPICH, or choose --launcher ssh or slurm"
            )
        hosts = [host.strip("[]") for host in placement.hosts]
        flavour = _flavour(path)
        if flavour == "mpich":
            arguments: Tuple[str, ...] = ("-launcher", "ssh", "-hosts", ",".join(hosts), "-ppn", "1")
        else:
            arguments = ("--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "node", "--bind-to", "none")
            arguments += ("-x", INVITATION)
            arguments += ("-x", "PYTHONPATH") if environ.get("PYTHONPATH") else ()
            arguments += ("--allow-run-as-root",) if os.geteuid() == 0 else ()
        command = (path, *arguments, "-n", str(len(hosts)), *_AGENT)
        return [Start(tuple(range(len(hosts))), command, None, False, "mpiexec")]


def _flavour(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"{path} --version does not work: {error}") from error
    if "HYDRA" in said:
        return "mpich"
    if "Open MPI" in said or "OpenRTE" in said or "PRRTE" in said:
        return "openmpi"
    raise ConfigError(f"{path} is neither Open MPI's nor MPICH's (it says {said[:80]!r}); choose --launcher ssh")
