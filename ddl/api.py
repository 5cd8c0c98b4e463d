"""The world communicator as module functions: ``ddl.init()``, ``ddl.rank()``, ``ddl.allreduce(x)``, …

The verbs here are those of ``Communicator``, on all ranks of the job; their documentation is there.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, TypeVar

from ddl import jobs
from ddl.bootstrap.launched import admission
from ddl.bootstrap.meeting import Rendezvous
from ddl.communicator import Communicator
from ddl.errors import Error, InvalidArgument, InvalidState
from ddl.reduce_op import Average, OpLike
from ddl.text.tracebacks import brief, briefly

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")
_T = TypeVar("_T")

__all__ = ["init", "shutdown", "is_initialized", "world", "abort", "split", "metrics"]
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "prepare_allreduce"]
__all__ += ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"]
__all__ += ["reduce", "reduce_async", "gather", "gather_async", "scatter", "scatter_async"]
__all__ += ["barrier", "barrier_async", "send", "send_async", "recv", "recv_async"]
__all__ += ["broadcast_object", "allgather_object"]

_jobs = jobs.state


@briefly
def init(comm: Any = None, *, rendezvous: Optional[Rendezvous] = None, deterministic: Optional[bool] = None) -> None:
    """Join the job: meet the other ranks and make the world communicator.

    Collective, blocking. Who this process is comes from the environment that ``ddlrun`` sets, or srun, torchrun or an
    MPI's mpiexec; without any, this is a job of size 1. ``comm``, an mpi4py communicator, says it instead: its ranks
    are the job. So does ``rendezvous``, where an engine has started the ranks (docs/engines.md); after ``shutdown``,
    this process can join another engine's job. ``deterministic``, alike on all ranks: sums depend on the number of
    ranks only, bit for bit, not on hosts, sizes or buckets (docs/deterministic.md); default: DDL_DETERMINISTIC, else
    False. Calling ``init`` again does nothing. Raises ``ConfigError`` for a wrong environment or ranks that differ in
    ``deterministic``, ``RendezvousError`` naming the ranks that did not come in time (DDL_START_TIMEOUT),
    ``ResourceError`` if this process can start no thread, ``InvalidArgument`` for a ``comm`` that is none.

    >>> import ddl
    >>> ddl.init()
    """
    if comm is not None and not all(hasattr(comm, name) for name in ("Get_rank", "Get_size", "bcast")):
        raise InvalidArgument(f"init: comm={comm!r:.100} is not an mpi4py communicator such as MPI.COMM_WORLD")
    if comm is not None and rendezvous is not None:
        raise InvalidArgument("init: comm and rendezvous were given; each says which ranks the job has: leave out one")

    def who() -> jobs.Admission:
        identity, settings, server = admission(comm, rendezvous)
        if deterministic is not None:
            settings = dataclasses.replace(settings, deterministic=deterministic)
        return jobs.Admission(identity, settings, server)

    jobs.join(who)


def shutdown() -> None:
    """Leave the job. Idempotent, not collective: ranks may leave at different times. Runs by itself at exit.

    What is under way fails with ``Aborted``; a rank that still waits for this one gets ``PeerLost``. Raises nothing.

    >>> ddl.shutdown()
    """
    jobs.shutdown()


def is_initialized() -> bool:
    """Return whether ``init`` was called (and ``shutdown`` was not)."""
    return _jobs.world is not None


def world() -> Communicator:
    """Return the communicator of all ranks. Raises ``InvalidState`` before ``init``."""
    current = _jobs.world
    if current is None:
        raise InvalidState("ddl.init() has not been called in this process (or ddl.shutdown() was)")
    return current


def rank() -> int:
    """Return this process's number among all ranks, 0 to size - 1. Raises ``InvalidState`` before ``init``.

    >>> ddl.rank()
    0
    """
    return world().identity.rank


def size() -> int:
    """Return the number of ranks. Raises ``InvalidState`` before ``init``.

    >>> ddl.size()
    1
    """
    return world().identity.size


def local_rank() -> int:
    """Return this process's number among the ranks that its launcher started on this host.

    Raises ``InvalidState`` before ``init``.
    """
    return world().identity.local_rank


def local_size() -> int:
    """Return how many ranks the launcher started on this host.

    Raises ``InvalidState`` before ``init``.
    """
    return world().identity.local_size


def cross_rank() -> int:
    """Return the number of this host among the hosts that have a rank with this ``local_rank``.

    Raises ``InvalidState`` before ``init``.
    """
    return world().identity.cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a rank with this ``local_rank``.

    Raises ``InvalidState`` before ``init``.
    """
    return world().identity.cross_size


def _on_world(verb: Callable[Concatenate[Communicator, _P], _T]) -> Callable[_P, _T]:
    """Return ``verb`` of ``Communicator`` as a function on the world communicator."""

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return verb(_jobs.world or world(), *args, **kwargs)
        except Error as error:
            brief(error)
            raise

    signature = inspect.signature(verb)
    call.__name__ = call.__qualname__ = verb.__name__
    call.__doc__ = verb.__doc__
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


allreduce = _on_world(Communicator.allreduce)
allreduce_async = _on_world(Communicator.allreduce_async)
allreduce_async_ = _on_world(Communicator.allreduce_async_)
prepare_allreduce = _on_world(Communicator.prepare_allreduce)
broadcast = _on_world(Communicator.broadcast)
broadcast_async = _on_world(Communicator.broadcast_async)
broadcast_async_ = _on_world(Communicator.broadcast_async_)
reducescatter_async = _on_world(Communicator.reducescatter_async)
allgather_async = _on_world(Communicator.allgather_async)
alltoall_async = _on_world(Communicator.alltoall_async)
reduce = _on_world(Communicator.reduce)
reduce_async = _on_world(Communicator.reduce_async)
gather = _on_world(Communicator.gather)
gather_async = _on_world(Communicator.gather_async)
scatter = _on_world(Communicator.scatter)
scatter_async = _on_world(Communicator.scatter_async)
barrier = _on_world(Communicator.barrier)
barrier_async = _on_world(Communicator.barrier_async)
send = _on_world(Communicator.send)
send_async = _on_world(Communicator.send_async)
recv = _on_world(Communicator.recv)
recv_async = _on_world(Communicator.recv_async)
broadcast_object = _on_world(Communicator.broadcast_object)
allgather_object = _on_world(Communicator.allgather_object)
split = _on_world(Communicator.split)
abort = _on_world(Communicator.abort)
metrics = _on_world(Communicator.metrics)


# Written out: the calls that matter most save the microsecond that a wrapper with arbitrary arguments costs.


def allreduce_(x: _T, *, op: OpLike = Average) -> _T:
    try:
        return (_jobs.world or world()).allreduce_(x, op=op)
    except Error as error:
        brief(error)
        raise


def broadcast_(x: _T, root: int = 0) -> _T:
    try:
        return (_jobs.world or world()).broadcast_(x, root)
    except Error as error:
        brief(error)
        raise


def reducescatter(x: Any, *, op: OpLike = Average, out: Any = None) -> Any:
    try:
        return (_jobs.world or world()).reducescatter(x, op=op, out=out)
    except Error as error:
        brief(error)
        raise


def allgather(x: Any, *, out: Any = None) -> Any:
    try:
        return (_jobs.world or world()).allgather(x, out=out)
    except Error as error:
        brief(error)
        raise


def alltoall(x: Any, splits: Optional[Sequence[int]] = None, *, out: Any = None) -> Any:
    try:
        return (_jobs.world or world()).alltoall(x, splits, out=out)
    except Error as error:
        brief(error)
        raise


for _verb in (allreduce_, broadcast_, reducescatter, allgather, alltoall):
    _verb.__doc__ = getattr(Communicator, _verb.__name__).__doc__
