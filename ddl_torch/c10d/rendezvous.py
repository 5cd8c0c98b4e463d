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
from ddl import Communicator, ConfigError, Rendezvous
from ddl.adapter.joining import LaunchedJob, join

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
        join(lambda: _rendezvous(store, own_rank, size))
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


def _rendezvous(store: Store, rank: int, size: int) -> Optional[Rendezvous]:
    if size == 1:
        return None
    job = store.add(f"ddl/came/{rank}", 1)  # a process group may be made again with the same store, by all ranks alike
    store.set(f"ddl/{job}/host/{rank}", socket.gethostname())
    hosts = [str(store.get(f"ddl/{job}/host/{other}"), "utf-8") for other in range(size)]

    def share(text: Optional[str]) -> str:
        if text is not None:
            store.set(f"ddl/{job}/invitation", text)
        return str(store.get(f"ddl/{job}/invitation"), "utf-8")

    return Rendezvous(rank, size, share, hosts, "torch.distributed")


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
    job = LaunchedJob.find()
    if job is None:
        yield HashStore(), 0, 1  # as everywhere in DDL: a job of its own
        return
    key = f"torch/store/{next(_stores)}"

    def share(port: Optional[str]) -> str:
        if ddl.is_initialized():  # it is the one who speaks for this rank to the store of the job
            return str(ddl.world().broadcast_object(port))
        return job.share(key, port)

    if job.rank == 0:
        store = TCPStore("127.0.0.1", 0, job.size, True, timeout, wait_for_workers=False)
        share(str(store.port))
    else:
        store = TCPStore(job.host, int(share(None)), job.size, False, timeout, wait_for_workers=False)
    yield store, job.rank, job.size
