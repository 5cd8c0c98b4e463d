"""What the library for jaxlib (csrc/mpi) asks Python for: to join the job, and communicators of groups of ranks.

Its functions are called by the library, in any thread, with the interpreter lock.
"""

from __future__ import annotations

import threading
from typing import Dict, List, Optional, Tuple

import ddl
from ddl.adapter.native import address_of, native_calls
from ddl_jax._compat import global_state

__all__ = ["begin", "forget", "split"]


class _Groups:
    """The communicators that XLA has. They are split off ``base``, of all ranks, which nobody else uses."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # one at a time is made
        self.base: Optional[ddl.Communicator] = None
        self.communicators: Dict[int, ddl.Communicator] = {}


_groups = _Groups()


def begin() -> Tuple[int, int, int, int]:
    """Join the job; return the address of the core's calls, and that of a communicator, its rank and its size.

    Collective. Raises what ``ddl.init`` raises, and ``InvalidState`` if JAX's processes are not the ranks of the job.
    """
    ddl.init()
    processes = global_state.num_processes
    if processes != ddl.size():
        raise ddl.InvalidState(
            f"JAX has {processes} processes, but DDL's job has {ddl.size()} ranks: start the processes by ddlrun, and "
            "call jax.distributed.initialize() without arguments"
        )
    with _groups.lock:
        if _groups.base is None:
            _groups.base = _kept(ddl.split(0))
        base = _groups.base
    return native_calls(), address_of(base), base.rank, base.size


def split(color: int, key: int, in_a_group: int) -> Tuple[int, int, int, int]:
    """Return 0, and the address of the communicator of the ranks that pass this color, its rank and its size.

    Collective over all ranks. ``key``: the rank's place in its group. Address 0: the rank is in no group.
    """
    with _groups.lock:
        if _groups.base is None:
            raise ddl.InvalidState("MPI_Comm_split was called before MPI_Init")
        part = _groups.base.split(color if in_a_group else None, key)
        if part is None:
            return 0, 0, 0, 1
        places: List[int] = part.allgather_object(key)
        if places != list(range(part.size)):
            raise ddl.InvalidState(
                f"{part.who} JAX wants a group whose ranks have the places {places}; DDL serves groups with one device "
                "of each process (jax_num_cpu_devices=1), which all processes of the job make at the same time"
            )
        return 0, address_of(_kept(part)), part.rank, part.size


def forget(address: int) -> None:
    """Let go of a communicator that XLA has freed."""
    with _groups.lock:
        _groups.communicators.pop(address, None)


def _kept(communicator: Optional[ddl.Communicator]) -> ddl.Communicator:
    assert communicator is not None, "this rank has passed a color"
    _groups.communicators[address_of(communicator)] = communicator
    return communicator
