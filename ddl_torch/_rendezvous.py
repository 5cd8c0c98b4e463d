"""How the ranks of a process group become a communicator of ``ddl``."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Callable, List, Optional, Tuple

from torch._C._distributed_c10d import Store
from torch.distributed import default_pg_timeout

import ddl
from ddl import Communicator, ConfigError, api
from ddl.bootstrap import launched
from ddl.bootstrap.environ import Identity, Settings

__all__ = ["communicator_for"]


def communicator_for(
    store: Store, rank: int, size: int, members: List[int], timeout: datetime.timedelta
) -> Tuple[Communicator, Callable[[], None]]:
    """Return a communicator for ``rank`` of ``size``, and what ends it.

    ``members`` are ranks of the default group; empty: this is the default group, whose ranks find one another by
    ddlrun, or by what rank 0 puts into ``store``. A ``timeout`` other than torch's default is that of each operation.
    """
    seconds = None if timeout == default_pg_timeout else timeout.total_seconds()
    if members and len(members) < ddl.size():
        part = ddl.world().subset(members, timeout=seconds)
        return part, part.close
    begun_here = not ddl.is_initialized()
    if begun_here:
        api.join(lambda: _who(store, rank, size))
    world = ddl.world()
    if (world.rank, world.size) != (rank, size):
        raise ConfigError(
            f"torch.distributed was told that this is rank {rank} of {size}, but it is rank {world.rank} of "
            f"{world.size} of DDL's job (DDL_RANK, DDL_SIZE); give init_process_group the same numbers, or none"
        )
    if seconds is None and begun_here:
        return world, ddl.shutdown
    own = world.subset(range(size), timeout=seconds)
    return own, ddl.shutdown if begun_here else own.close


def _who(store: Store, rank: int, size: int) -> Tuple[Identity, Settings]:
    settings = Settings.from_environ(os.environ)
    identity = Identity.from_environ(os.environ)
    if identity.store or size == 1:
        return identity, settings
    store.set(f"ddl/host/{rank}", socket.gethostname())
    hosts = [str(store.get(f"ddl/host/{other}"), "utf-8") for other in range(size)]
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    number = list(dict.fromkeys(hosts)).index(hosts[rank])
    found = launched.Launched("torch.distributed", rank, size, here.index(rank), len(here), number, len(set(hosts)), "")

    def share(text: Optional[str]) -> str:
        if text is not None:
            store.set("ddl/job", text)
        return str(store.get("ddl/job"), "utf-8")

    return launched.join(found, share, settings), settings
