"""The world communicator as module functions: ``ddl.init()``, ``ddl.rank()``, ``ddl.allreduce(x)``, …

The verbs here are those of ``Communicator``, on all ranks of the job; their documentation is there.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from ddl import at_exit
from ddl._comm import elastic
from ddl._comm.group import Group
from ddl._comm.job import Job
from ddl.bootstrap.environ import Identity, Settings
from ddl.bootstrap.launched import identity_and_settings
from ddl.bootstrap.misspelt import misspelt
from ddl.communicator import Communicator
from ddl.errors import Error, InvalidArgument, InvalidState
from ddl.negotiation import timeline
from ddl.net.shortage import threads_for
from ddl.reduce_op import Average, OpLike
from ddl.text.tracebacks import brief, briefly
from ddl.tuning.measure.adopt import adopt

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


class _ProcessState:
    """The job of this process, and others beside it; guarded by ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: Optional[Communicator] = None
        self.rounds = 0
        # Groups that were shut down. A slower rank may still look at their boards, so these stay until all ranks
        # have met again (or the process ends).
        self.retired: List[Group] = []
        self.hooked = False
        self.jobs: weakref.WeakSet[Job] = weakref.WeakSet()  # that of ``world``, and others that ``begin_job`` made


_state = _ProcessState()
_log = logging.getLogger("ddl")
_levels = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def _log_to_stderr(level: str) -> None:
    """Show DDL's own messages, unless the program has set up logging for them."""
    _log.setLevel(_levels[level])
    if not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("ddl %(levelname)s: %(message)s"))
        _log.addHandler(handler)


@briefly
def init(comm: Any = None, *, deterministic: Optional[bool] = None) -> None:
    """Join the job: meet the other ranks and make the world communicator.

    Collective, blocking. Who this process is comes from the environment that ``ddlrun`` sets, or srun, torchrun or an
    MPI's mpiexec; without any, this is a job of size 1. ``comm``, an mpi4py communicator, says it instead: its ranks
    are the job. ``deterministic``, alike on all ranks: sums depend on the number of ranks only, bit for bit, not on
    hosts, sizes or buckets (docs/deterministic.md); default: DDL_DETERMINISTIC, else False. Calling ``init`` again does
    nothing. Raises ``ConfigError`` for a wrong environment or ranks that differ in ``deterministic``,
    ``RendezvousError`` naming the ranks that did not come in time (DDL_START_TIMEOUT), ``ResourceError`` if this
    process can start no thread, ``InvalidArgument`` for a ``comm`` that is none.

    >>> import ddl
    >>> ddl.init()
    """
    if comm is not None and not all(hasattr(comm, name) for name in ("Get_rank", "Get_size", "bcast")):
        raise InvalidArgument(f"init: comm={comm!r:.100} is not an mpi4py communicator such as MPI.COMM_WORLD")

    def who() -> Tuple[Identity, Settings]:
        identity, settings = identity_and_settings(comm)
        if deterministic is not None:
            settings = dataclasses.replace(settings, deterministic=deterministic)
        return identity, settings

    join(who)


def join(who: Callable[[], Tuple[Identity, Settings]]) -> None:
    """Do what ``init`` does for a process that learns elsewhere who it is: for adapters of launchers and frameworks."""
    with _state.lock:
        if _state.world is not None:
            return
        identity, settings = who()
        settings.check()
        if settings.elastic and _state.rounds:
            raise InvalidState(
                "init() was called again after shutdown() in a job whose ranks come and go (DDL_ELASTIC=1): a process "
                "that has left such a job does not come back; go on with ddl.elastic instead"
            )
        _log_to_stderr(settings.log)
        if identity.rank == 0:
            for text in misspelt(os.environ):
                _log.warning("%s", text)
        try:
            if settings.timeline and identity.rank == 0:  # first: if it is refused, no other rank may begin
                name = f"rank {identity.rank} of {identity.size}"
                timeline.start(settings.timeline, mark_cycles=settings.timeline_cycles, who=name)
            world = begin_job(identity, settings, _state.rounds)
        except BaseException:
            timeline.stop()
            raise
        _state.rounds += 1
        _state.retired.clear()
        _state.world = world


def begin_job(identity: Identity, settings: Settings, round: int = 0) -> Communicator:
    """Join a job beside those that this process is in, and return its world communicator. For adapters.

    Collective, blocking; raises what ``init`` raises. ``ddl.world()`` stays what it is: see ``use_job``. The caller
    leaves the job by ``end_job``; if it does not, that is done at exit.
    """
    _log_to_stderr(settings.log)
    job = Job(identity, settings, round)
    group = None
    try:
        with threads_for(f"rank {identity.rank} cannot join the job"):
            if settings.incarnation >= 0:
                group = elastic.arrive(job)
                world = Communicator(group)
            else:
                core = Group.make_core(job, identity.rank, identity.size)
                job.rendezvous(core.board_offset)
                boards = [peer.board_offset for peer in job.peers.values()] or [core.board_offset]
                group = Group.world(job, core, boards)
                world = Communicator(group)
                adopt(world)
                if job.generations is not None:
                    elastic.begin(job)
    except BaseException:
        if group is not None:
            group.close()
            _state.retired.append(group)
        job.close()
        raise
    if not _state.hooked:
        _state.hooked = True
        at_exit.register(leave_all)
        os.register_at_fork(after_in_child=_forget_in_child)
    _state.jobs.add(job)
    return world


def use_job(world: Communicator) -> None:
    """Let ``ddl.world()`` be ``world``, which ``begin_job`` has made; the one before stays as it is. For adapters."""
    with _state.lock:
        _state.world = world


def end_job(world: Communicator) -> Group:
    """Leave the job of ``world``, which ``begin_job`` has made. Idempotent, not collective. For adapters.

    Returns what the caller keeps until all ranks have met again: a slower rank may still look at its board.
    """
    with _state.lock:
        if _state.world is world:
            _state.world = None
        world._group.close()
        world.job.close()
        _state.jobs.discard(world.job)
        return world._group


def shutdown() -> None:
    """Leave the job. Idempotent, not collective: ranks may leave at different times. Runs by itself at exit.

    What is under way fails with ``Aborted``; a rank that still waits for this one gets ``PeerLost``. Raises nothing.

    >>> ddl.shutdown()
    """
    with _state.lock:
        if _state.world is None:
            return
        world, _state.world = _state.world, None
        timeline.stop()
        world._group.close()
        world.job.close()
        _state.jobs.discard(world.job)
        _state.retired.append(world._group)


def leave_all() -> None:
    """Say goodbye in every job that this process is still in, as at its exit. For adapters."""
    shutdown()
    for job in list(_state.jobs):
        job.close()


def next_generation(said: Dict[str, Any]) -> Dict[int, Any]:
    """Come to the job's next generation of ranks, whose communicator ``world()`` returns then. For ``ddl.elastic``.

    Collective over the members of that generation, blocking. Communicators made before are closed. ``said``, which JSON
    can hold, is told to all. Returns what each rank has said. Raises ``InvalidState`` where ranks do not come and
    go, ``LeftOut`` where this process is left out or the job ends, ``RendezvousError`` where time runs out.
    """
    with _state.lock:
        if _state.world is None or _state.world.job.generations is None:
            raise InvalidState(
                "the ranks of this job do not come and go; start it by ddlrun --min-np, or set DDL_ELASTIC=1"
            )
        before = _state.world._group
        before.close()
        group, values = elastic.advance(before.job, said)
        _state.retired[:] = [before]  # until all have met again: a slower rank may look at its board
        _state.world = Communicator(group)
        return values


def _forget_in_child() -> None:
    """A forked child (a data loader's worker, say) is no rank; it must not hold its parent's connections open."""
    for job in list(_state.jobs):
        job.close_in_child()
    _state.lock = threading.Lock()
    _state.world = None


def is_initialized() -> bool:
    """Return whether ``init`` was called (and ``shutdown`` was not)."""
    return _state.world is not None


def world() -> Communicator:
    """Return the communicator of all ranks. Raises ``InvalidState`` before ``init``."""
    current = _state.world
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
            return verb(_state.world or world(), *args, **kwargs)
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
        return (_state.world or world()).allreduce_(x, op=op)
    except Error as error:
        brief(error)
        raise


def broadcast_(x: _T, root: int = 0) -> _T:
    try:
        return (_state.world or world()).broadcast_(x, root)
    except Error as error:
        brief(error)
        raise


def reducescatter(x: Any, *, op: OpLike = Average, out: Any = None) -> Any:
    try:
        return (_state.world or world()).reducescatter(x, op=op, out=out)
    except Error as error:
        brief(error)
        raise


def allgather(x: Any, *, out: Any = None) -> Any:
    try:
        return (_state.world or world()).allgather(x, out=out)
    except Error as error:
        brief(error)
        raise


def alltoall(x: Any, splits: Optional[Sequence[int]] = None, *, out: Any = None) -> Any:
    try:
        return (_state.world or world()).alltoall(x, splits, out=out)
    except Error as error:
        brief(error)
        raise


for _verb in (allreduce_, broadcast_, reducescatter, allgather, alltoall):
    _verb.__doc__ = getattr(Communicator, _verb.__name__).__doc__
