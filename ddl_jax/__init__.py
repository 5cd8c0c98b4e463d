"""DDL for JAX: its ranks as JAX's processes, collectives on CPUs, and an all-reduce for gradients (docs/jax.md).

>>> import ddl_jax as ddl
>>> ddl.init()
>>> gradients = ddl.allreduce(gradients)
"""

from __future__ import annotations

from ddl_jax import _library  # noqa: F401  # isort: skip  # before JAX: jaxlib loads what it names
import ddl_jax._cluster  # noqa: F401  # isort: skip  # JAX knows it then

from ddl import (
    Average,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorError,
    Error,
    InvalidArgument,
    InvalidState,
    Max,
    Min,
    PeerLost,
    Product,
    Sum,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from ddl_jax.gradients import allreduce, average_gradients, broadcast_parameters
from ddl_jax.start import init

__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"]
__all__ += ["allreduce", "average_gradients", "broadcast_parameters"]
__all__ += ["Average", "Sum", "Min", "Max", "Product"]
__all__ += ["Error", "InvalidArgument", "InvalidState", "CommunicatorError"]
__all__ += ["PeerLost", "CollectiveTimeout", "CollectiveMismatch"]
