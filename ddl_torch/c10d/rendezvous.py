"""Makes a communicator of ``ddl`` for the ranks of a process group; and ``init_method="ddl://"``."""

from __future__ import annotations

import datetime
import itertools
import os
import socket
from typing import Any, Callable, Iterator, List, Optional, Tuple

from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

import ddl
from ddl import Communicator, ConfigError, api
from ddl.adapter.rendezvous import Identity, Settings, StoreClient, launched, parse_address

__all__ = ["by_launcher", "communicator_for"]

_stores = itertools.count()  # those made here, by all ranks alike


def communicator_for(
    store: Store, rank: int, size: int, members: List[int], seconds: Optional[float]
) -> Tuple[Communicator, Callable[[], None]]:
    """Return a communicator for ``rank`` of ``size``, and what ends it.

    ``members`` are ranks of the default group; empty: this is the default group, whose ranks find one another by
    ddlrun, or by what rank 0 puts into ``store``. ``seconds``: of each operation; None: DDL's own deadline.
    """
    own_rank = members[rank] if members else rank
    if members and len(members) < ddl.size():
        part = ddl.world().subset(members, timeout=seconds)
        return part, part.close
    begun_here = not ddl.is_initialized()
    if begun_here:
        api.join(lambda: _who(store, own_rank, size))
    world = ddl.world()
    if (world.rank, world.size) != (own_rank, size):
        if begun_here:
            ddl.shutdown()
        raise ConfigError(
            f"torch.distributed was told that this is rank {own_rank} of {size}, but it is rank {world.rank} of "
            f"{world.size} of DDL's job (DDL_RANK, DDL_SIZE); give init_process_group the same numbers, or none"
        )
    if seconds is None and begun_here and members == sorted(members):
        return world, ddl.shutdown
    own = world.subset(members or range(size), timeout=seconds)
    return own, ddl.shutdown if begun_here else own.close


def _who(store: Store, rank: int, size: int) -> Tuple[Identity, Settings]:
    settings, identity = Settings.from_environ(os.environ), Identity.from_environ(os.environ)
    if identity.store or size == 1:
        return identity, settings
    store.set(f"ddl/host/{rank}", socket.gethostname())
    hosts = [str(store.get(f"ddl/host/{other}"), "utf-8") for other in range(size)]
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    number = list(dict.fromkeys(hosts)).index(hosts[rank])
    who = launched.Launched("torch.distributed", rank, size, here.index(rank), len(here), number, len(set(hosts)), "")

    def share(text: Optional[str]) -> str:
        if text is not None:
            store.set("ddl/job", text)
        return str(store.get("ddl/job"), "utf-8")

    return launched.join(who, share, settings), settings


def by_launcher(
    _: str, *, timeout: datetime.timedelta = default_pg_timeout, **__: Any
) -> Iterator[Tuple[Store, int, int]]:
    """Find the other ranks by what started this one, for ``init_method="ddl://"``; yield torch's store, rank and size.

    Where torch's own variables are set, as by ddlrun and torchrun, that is ``env://``. Under srun and mpiexec, rank 0
    has the store, and the others learn its port as those of DDL's own jobs do (ddl/bootstrap/launched.py).
    """
    if all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        yield from rendezvous("env://", timeout=timeout)
        return
    settings = Settings.from_environ(os.environ)
    identity = launched.identity(os.environ, settings)
    if identity is None:
        yield HashStore(), 0, 1  # as everywhere in DDL: a job of its own
        return
    store: Store
    key = f"torch/store/{next(_stores)}"
    asking = StoreClient(identity.store, identity.secret, identity.rank, settings.start_timeout)
    try:
        if identity.rank == 0:
            store = TCPStore("127.0.0.1", 0, identity.size, True, timeout, wait_for_workers=False)
            asking.set(key, str(store.port))
        else:
            port = int(asking.get(key, settings.start_timeout))
            store = TCPStore(
                parse_address(identity.store)[0], port, identity.size, False, timeout, wait_for_workers=False
            )
    finally:
        asking.close()
    yield store, identity.rank, identity.size
