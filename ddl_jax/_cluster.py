"""``jax.distributed.initialize()`` without arguments, in a job of DDL's; and DDL's collectives for JAX's CPU client.

JAX finds the class below as soon as it is there. It asks it only where the caller leaves something out.
"""

from __future__ import annotations

import logging
import os
import socket
from typing import Optional

import jax

import ddl
from ddl.adapter.addresses import own_address
from ddl.adapter.joining import started_ranks
from ddl_jax import _library
from ddl_jax._compat import ClusterEnv, clusters

__all__ = ["DDLCluster"]

_CHOICE = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_log = logging.getLogger("ddl")


class DDLCluster(ClusterEnv):
    """The ranks of a job as JAX's processes: those that ddlrun has started, or mpiexec or torchrun."""

    name: str = "ddl"

    @classmethod
    def is_env_present(cls) -> bool:
        """Return whether this process was started as a rank. Not collective."""
        return bool(os.environ.get("DDL_STORE")) or started_ranks() > 1

    @classmethod
    def get_coordinator_address(cls, timeout_secs: Optional[int], override_coordinator_port: Optional[str]) -> str:
        """Join the job; return where rank 0 shall have JAX's coordinator: at a port that is free now. Collective."""
        _join()
        here = own_address()
        port = override_coordinator_port or str(_free_port(here))
        return str(ddl.broadcast_object(f"[{here}]:{port}" if ":" in here else f"{here}:{port}", 0))

    @classmethod
    def get_process_count(cls) -> int:
        _join()
        return ddl.size()

    @classmethod
    def get_process_id(cls) -> int:
        _join()
        return ddl.rank()

    @classmethod
    def get_local_process_id(cls) -> Optional[int]:
        """Return which GPU is this process's: one for each rank of a host, as with other launchers."""
        _join()
        return ddl.local_rank()


# JAX takes the first that is there. Others look at what batch systems set, which describes ddlrun's agents: not ranks.
clusters.insert(0, clusters.pop())


def _join() -> None:
    """Join the job, and let JAX's CPU client use DDL for its collectives, if the user has not chosen others.

    Collective the first time.
    """
    ddl.init()
    if os.environ.get(_CHOICE, "mpi") != "mpi":
        return
    if _library.is_loaded():
        jax.config.update("jax_cpu_collectives_implementation", "mpi")
    elif ddl.rank() == 0:
        _log.warning(
            "JAX goes on with its own collectives, as jaxlib has not loaded DDL's library: import ddl_jax before jax, "
            "or start the program by ddlrun --jax; and leave MPITRAMPOLINE_LIB unset"
        )


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
