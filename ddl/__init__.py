"""DDL: averages gradients over the ranks of a job, fast, on the machines you have.

>>> import ddl
>>> ddl.init()
>>> mean = ddl.allreduce(array)

Importing has no side effect: nothing is connected or started before ``ddl.init()``. The native core is loaded when a
name that needs it is first used, so that the launcher and the planners start without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ddl import at_exit, errors
from ddl._version import __version__
from ddl.errors import *
from ddl.reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum

if TYPE_CHECKING:
    from ddl.api import *
    from ddl.bootstrap.job_store import JobStore
    from ddl.bootstrap.meeting import Rendezvous
    from ddl.communicator import Communicator, Metrics, PreparedOperation, Work
    from ddl.launch.function.run import run
    from ddl.memory import empty, is_shared

# Literal lists and those of modules: that is what type checkers understand. First what needs the native core …
__all__ = ["init", "shutdown", "is_initialized", "world", "abort", "split", "metrics"]
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "prepare_allreduce"]
__all__ += ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"]
__all__ += ["reduce", "reduce_async", "gather", "gather_async", "scatter", "scatter_async"]
__all__ += ["barrier", "barrier_async", "send", "send_async", "recv", "recv_async"]
__all__ += ["broadcast_object", "allgather_object"]
_LAZY = {name: "ddl.api" for name in __all__}
__all__ += ["Communicator", "Metrics", "PreparedOperation", "Work", "empty", "is_shared"]
_LAZY.update({name: "ddl.communicator" for name in ("Communicator", "Metrics", "PreparedOperation", "Work")})
_LAZY.update(empty="ddl.memory", is_shared="ddl.memory")
__all__ += ["run"]
_LAZY.update(run="ddl.launch.function.run")
__all__ += ["JobStore", "Rendezvous"]
_LAZY.update(JobStore="ddl.bootstrap.job_store", Rendezvous="ddl.bootstrap.meeting")
# … then what does not.
__all__ += errors.__all__
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "_core":  # asked for before it is imported, and perhaps it was never built
        from ddl.text.unbuilt import check_built

        check_built(__path__)
    if name not in _LAZY:
        from ddl.text.spelling import no_attribute

        raise no_attribute(__name__, name, __all__)
    import importlib

    module = importlib.import_module(_LAZY[name])
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
