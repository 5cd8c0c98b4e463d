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
        allgather as allgather,
        allgather_async as allgather_async,
        allgather_object as allgather_object,
        allreduce as allreduce,
        allreduce_ as allreduce_,
        allreduce_async as allreduce_async,
        allreduce_async_ as allreduce_async_,
        alltoall as alltoall,
        alltoall_async as alltoall_async,
        barrier as barrier,
        barrier_async as barrier_async,
        broadcast as broadcast,
        broadcast_ as broadcast_,
        broadcast_async as broadcast_async,
        broadcast_async_ as broadcast_async_,
        broadcast_object as broadcast_object,
        cross_rank as cross_rank,
        cross_size as cross_size,
        gather as gather,
        gather_async as gather_async,
        init as init,
        is_initialized as is_initialized,
        local_rank as local_rank,
        local_size as local_size,
        rank as rank,
        recv as recv,
        recv_async as recv_async,
        reduce as reduce,
        reduce_async as reduce_async,
        reducescatter as reducescatter,
        reducescatter_async as reducescatter_async,
        scatter as scatter,
        scatter_async as scatter_async,
        send as send,
        send_async as send_async,
        shutdown as shutdown,
        size as size,
        split as split,
        world as world,
    )
    from ddl.communicator import Communicator as Communicator
    from ddl.communicator import Work as Work
    from ddl.memory import empty as empty
    from ddl.memory import is_shared as is_shared

_ERRORS = [
    *("Aborted", "CollectiveMismatch", "CollectiveTimeout", "CommunicatorError", "ConfigError", "Error"),
    *("InternalError", "InvalidArgument", "InvalidState", "PeerLost", "ProtocolError", "RendezvousError"),
    *("ResourceError", "WaitTimeout"),
]
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

__all__ = ["Average", "Max", "Min", "Product", "ReduceOp", "Sum", "__version__", *_ERRORS, *_LAZY]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ddl' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted(__all__)
