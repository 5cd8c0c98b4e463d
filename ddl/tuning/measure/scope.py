"""Which collectives and sizes can be measured: known without numpy and the core, which a build does not have."""

from __future__ import annotations

from ddl.plan.ir import Collective

__all__ = ["COLLECTIVES", "SIZES"]

COLLECTIVES = (
    Collective.ALLREDUCE,
    Collective.REDUCESCATTER,
    Collective.ALLGATHER,
    Collective.ALLTOALL,
    Collective.BROADCAST,
)
SIZES = (8, *(4**power for power in range(3, 14)))  #: bytes, up to 64 MiB
