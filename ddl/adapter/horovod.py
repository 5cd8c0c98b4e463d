"""Start and end of a job, and questions about the installation, as Horovod's scripts call them. For every adapter."""

from __future__ import annotations

import importlib
from typing import Any, Optional, Sequence, Union

from ddl import api
from ddl.adapter.process_sets import ProcessSet, ProcessSets
from ddl.adapter.rank_prefix import naming_rank
from ddl.bootstrap.meeting import Rendezvous
from ddl.errors import InvalidArgument
from ddl.negotiation import timeline

__all__ = ["Basics", "check_extension", "gpu_available", "is_homogeneous", "start_timeline", "stop_timeline"]
__all__ += ["ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled"]
__all__ += ["mpi_threads_supported", "nccl_built", "rocm_built"]


class Basics:
    """The functions of an adapter whose process sets are ``process_sets``."""

    def __init__(self, process_sets: ProcessSets) -> None:
        self._sets = process_sets

    def init(
        self,
        comm: Any = None,
        process_sets: Union[None, str, Sequence[ProcessSet]] = None,
        *,
        rendezvous: Optional[Rendezvous] = None,
    ) -> None:
        """Join the job, as ``ddl.init``, and make its process sets. Collective, blocking. Again, it does nothing.

        ``comm``: an mpi4py communicator whose ranks are the job, or a list of all ranks. ``process_sets``: sets to put
        to use, alike on all ranks; "dynamic", which Horovod needs for ``add_process_set``, is always so here.
        ``rendezvous``: as for ``ddl.init``. Raises what that does, and ``InvalidArgument`` for any other list or set; a
        job that this call has joined is left then.

        >>> ddl_torch.init()
        """
        begun = not api.is_initialized()
        listed = isinstance(comm, Sequence) and not isinstance(comm, str)
        api.init(None if listed else comm, rendezvous=rendezvous)
        try:
            self._open(comm if listed else None, process_sets)
        except BaseException:
            if begun:  # who catches it finds nothing done, and can call it again
                self.shutdown()
            raise

    @naming_rank
    def _open(self, everybody: Optional[Sequence[int]], process_sets: Union[None, str, Sequence[ProcessSet]]) -> None:
        if everybody is not None and sorted(everybody) != list(range(api.size())):
            raise InvalidArgument(
                f"init: comm={list(everybody)} is not all of the {api.size()} ranks; start as many ranks as the job "
                "needs, or pass process_sets=[ProcessSet(ranks)]"
            )
        if isinstance(process_sets, str) and process_sets != "dynamic":
            raise InvalidArgument(f'init: process_sets={process_sets!r} is neither a list nor "dynamic"')
        self._sets.open()
        if process_sets is not None and not isinstance(process_sets, str):
            for process_set in process_sets:
                if process_set.process_set_id is None:
                    self._sets.add(process_set)

    def shutdown(self) -> None:
        """Leave the job, as ``ddl.shutdown``. Idempotent, not collective."""
        self._sets.close()
        api.shutdown()

    def add_process_set(self, process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
        """Put a process set (or one of these ranks) to use and return it. All ranks of the job call it alike.

        Raises ``InvalidArgument`` for unknown ranks, and for a set that is in use already.
        """
        return self._sets.add(process_set)

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Put a process set out of use, on all ranks of the job alike; return whether it was in use and could be."""
        return self._sets.remove(process_set)

    @naming_rank
    def process_set_by_id(self, process_set_id: int) -> ProcessSet:
        """Return the process set in use with that number. Raises ``InvalidArgument`` if there is none."""
        known = self._sets.by_number()
        if process_set_id not in known:
            raise InvalidArgument(f"there is no process set {process_set_id}; in use are {sorted(known)}")
        return known[process_set_id]


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of ranks. Raises ``InvalidState`` before ``init``."""
    return api.world().homogeneous


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: Any) -> None:
    """Raise ``ImportError`` unless DDL's native core can be loaded. The arguments are Horovod's, and not used."""
    importlib.import_module("ddl._core")


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return False, as ``cuda_built``. The arguments are Horovod's, and not used."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to write a timeline of operations on rank 0 to a new file, for chrome://tracing or Perfetto.

    ``mark_cycles``: also mark each round in which ranks agree on what to run. Other ranks may call it, too.
    """
    if api.rank() == 0:
        timeline.start(file_path, mark_cycles=mark_cycles, who=f"rank {api.rank()} of {api.size()}")


def stop_timeline() -> None:
    """End the timeline. Idempotent."""
    timeline.stop()


def mpi_threads_supported() -> bool:
    """Return False: DDL does not call MPI, also where an MPI started its ranks."""
    return False


def mpi_enabled() -> bool:
    """Return False, as ``mpi_threads_supported``."""
    return False


def mpi_built() -> bool:
    """Return False, as ``mpi_threads_supported``."""
    return False


def gloo_enabled() -> bool:
    """Return False: DDL has transports of its own."""
    return False


def gloo_built() -> bool:
    """Return False, as ``gloo_enabled``."""
    return False


def nccl_built() -> int:
    """Return 0, the version of NCCL: there is none."""
    return 0


def ddl_built() -> bool:
    """Return True: this is it."""
    return True


def ccl_built() -> bool:
    """Return False: oneCCL is not used."""
    return False


def cuda_built() -> bool:
    """Return False: tensors are on the CPU."""
    return False


def rocm_built() -> bool:
    """Return False, as ``cuda_built``."""
    return False
