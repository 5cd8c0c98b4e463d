"""DDL: averages gradients over the ranks of a job, fast, on the machines you have.

>>> import ddl
>>> ddl.init()
>>> mean = ddl.allreduce(array)

Importing has no side effect: nothing is connected or started before ``ddl.init()``. The native core is loaded when a
name that needs it is first used, so that the launcher and the planners start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ddl._version import __version__
from ddl.errors import (
    Aborted,
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorError,
    ConfigError,
    Error,
    InternalError,
    InvalidArgument,
    InvalidState,
    PeerLost,
    ProtocolError,
    RendezvousError,
    ResourceError,
    WaitTimeout,
)
from ddl.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

if TYPE_CHECKING:
    from ddl.api import (
        abort as abort,
    )
    from ddl.api import (
        allgather as allgather,
    )
    from ddl.api import (
        allgather_async as allgather_async,
    )
    from ddl.api import (
        allgather_object as allgather_object,
    )
    from ddl.api import (
        allreduce as allreduce,
    )
    from ddl.api import (
        allreduce_ as allreduce_,
    )
    from ddl.api import (
        allreduce_async as allreduce_async,
    )
    from ddl.api import (
        allreduce_async_ as allreduce_async_,
    )
    from ddl.api import (
        alltoall as alltoall,
    )
    from ddl.api import (
        alltoall_async as alltoall_async,
    )
    from ddl.api import (
        barrier as barrier,
    )
    from ddl.api import (
        barrier_async as barrier_async,
    )
    from ddl.api import (
        broadcast as broadcast,
    )
    from ddl.api import (
        broadcast_ as broadcast_,
    )
    from ddl.api import (
        broadcast_async as broadcast_async,
    )
    from ddl.api import (
        broadcast_async_ as broadcast_async_,
    )
    from ddl.api import (
        broadcast_object as broadcast_object,
    )
    from ddl.api import (
        cross_rank as cross_rank,
    )
    from ddl.api import (
        cross_size as cross_size,
    )
    from ddl.api import (
        gather as gather,
    )
    from ddl.api import (
        gather_async as gather_async,
    )
    from ddl.api import (
        init as init,
    )
    from ddl.api import (
        is_initialized as is_initialized,
    )
    from ddl.api import (
        local_rank as local_rank,
    )
    from ddl.api import (
        local_size as local_size,
    )
    from ddl.api import (
        rank as rank,
    )
    from ddl.api import (
        recv as recv,
    )
    from ddl.api import (
        recv_async as recv_async,
    )
    from ddl.api import (
        reduce as reduce,
    )
    from ddl.api import (
        reduce_async as reduce_async,
    )
    from ddl.api import (
        reducescatter as reducescatter,
    )
    from ddl.api import (
        reducescatter_async as reducescatter_async,
    )
    from ddl.api import (
        scatter as scatter,
    )
    from ddl.api import (
        scatter_async as scatter_async,
    )
    from ddl.api import (
        send as send,
    )
    from ddl.api import (
        send_async as send_async,
    )
    from ddl.api import (
        shutdown as shutdown,
    )
    from ddl.api import (
        size as size,
    )
    from ddl.api import (
        split as split,
    )
    from ddl.api import (
        world as world,
    )
    from ddl.communicator import Communicator as Communicator
    from ddl.communicator import Work as Work
    from ddl.memory import empty as empty
    from ddl.memory import is_shared as is_shared

_API = [
    *("init", "shutdown", "is_initialized", "world", "abort", "split"),
    *("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("allreduce", "allreduce_", "allreduce_async", "allreduce_async_"),
    *("broadcast", "broadcast_", "broadcast_async", "broadcast_async_"),
    *("reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"),
    *("reduce", "reduce_async", "gather", "gather_async", "scatter", "scatter_async"),
    *("barrier", "barrier_async", "send", "send_async", "recv", "recv_async"),
    *("broadcast_object", "allgather_object"),
]
_LAZY = {
    **{name: "ddl.api" for name in _API},
    "Communicator": "ddl.communicator",
    "Work": "ddl.communicator",
    "empty": "ddl.memory",
    "is_shared": "ddl.memory",
}

# Literal lists: that is what a type checker understands as exported.
__all__ = ["Aborted", "CollectiveMismatch", "CollectiveTimeout", "CommunicatorError", "ConfigError", "Error"]
__all__ += ["InternalError", "InvalidArgument", "InvalidState", "PeerLost", "ProtocolError", "RendezvousError"]
__all__ += ["ResourceError", "WaitTimeout", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "__version__"]
__all__ += [*_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ddl' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
