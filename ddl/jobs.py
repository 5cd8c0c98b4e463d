"""The jobs of this process: the one whose communicator ``ddl.world()`` returns, and others beside it.

``ddl/api.py`` has what users call. Adapters come here by ``ddl/adapter/joining.py``.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ddl import at_exit, clock
from ddl._comm import elastic
from ddl._comm.group import Group
from ddl._comm.job import Job
from ddl.bootstrap.environ import Identity, Settings
from ddl.bootstrap.misspelt import misspelt
from ddl.communicator import Communicator
from ddl.errors import InvalidState
from ddl.negotiation import timeline
from ddl.net.shortage import threads_for
from ddl.store.server import StoreServer
from ddl.tuning.measure.adopt import adopt

__all__ = ["Admission", "begin_job", "end_job", "join", "leave_all", "next_generation", "shutdown", "state", "use_job"]


class Admission(NamedTuple):
    """Who this process is, and how it is to behave. ``server``: of the job's store, if this process has that."""

    identity: Identity
    settings: Settings
    server: Optional[StoreServer] = None


class _ProcessState:
    """The job of this process, and others beside it; guarded by ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: Optional[Communicator] = None
        self.store = ""  # of the last job that ``join`` made, and how often that was joined
        self.rounds = 0
        # Groups that were shut down, each with the time until which it stays. Other ranks may still look at its board
        # and write to its buffers: until all have left it as well or have ended, or its own deadline has passed.
        self.retired: List[Tuple[float, Group]] = []
        self.hooked = False
        self.jobs: weakref.WeakSet[Job] = weakref.WeakSet()  # that of ``world``, and others that ``begin_job`` made


state = _ProcessState()
_log = logging.getLogger("ddl")
_levels = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def _log_to_stderr(level: str) -> None:
    """Show DDL's own messages, unless the program has set up logging for them."""
    _log.setLevel(_levels[level])
    if not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("ddl %(levelname)s: %(message)s"))
        _log.addHandler(handler)


def join(who: Callable[[], Admission]) -> None:
    """Do what ``init`` does for a process that learns elsewhere who it is."""
    with state.lock:
        if state.world is None:
            _join(*who())


def _join(identity: Identity, settings: Settings, server: Optional[StoreServer]) -> None:
    rounds = state.rounds if identity.store == state.store else 0
    try:
        _prepare(identity, settings, rounds)
        world = begin_job(identity, settings, server, rounds)
    except BaseException:
        timeline.stop()
        if server is not None:
            server.close()
        raise
    state.store, state.rounds, state.world = identity.store, rounds + 1, world
    _let_go_of_retired()


def _prepare(identity: Identity, settings: Settings, rounds: int) -> None:
    settings.check()
    if settings.elastic and rounds:
        raise InvalidState(
            "init() was called again after shutdown() in a job whose ranks come and go (DDL_ELASTIC=1): a process "
            "that has left such a job does not come back; go on with ddl.elastic instead"
        )
    _log_to_stderr(settings.log)
    if identity.rank == 0:
        for text in misspelt(os.environ):
            _log.warning("%s", text)
    if settings.timeline and identity.rank == 0:  # first: if it is refused, no other rank may begin
        name = f"rank {identity.rank} of {identity.size}"
        timeline.start(settings.timeline, mark_cycles=settings.timeline_cycles, who=name)


def begin_job(
    identity: Identity, settings: Settings, server: Optional[StoreServer] = None, round: int = 0
) -> Communicator:
    """Join a job beside those that this process is in, and return its world communicator.

    Collective, blocking; raises what ``init`` raises. ``ddl.world()`` stays what it is: see ``use_job``. The caller
    leaves the job by ``end_job``; if it does not, that is done at exit. ``server``: of the job's store, which ends when
    all ranks have left, or if this fails.
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
            _retire(group)
        job.close()
        if server is not None:
            server.close()
        raise
    job.server = server
    if not state.hooked:
        state.hooked = True
        os.register_at_fork(after_in_child=_forget_in_child)
    # Registered last, it runs first: a store in this process waits until all ranks have left, this one, too.
    at_exit.unregister(leave_all)
    at_exit.register(leave_all)
    state.jobs.add(job)
    return world


def _retire(group: Group, until: Optional[float] = None) -> None:
    state.retired.append((clock.now() + group.job.settings.timeout if until is None else until, group))
    _let_go_of_retired()


def _let_go_of_retired() -> None:
    now = clock.now()
    state.retired = [(until, group) for until, group in state.retired if until > now and not group.deserted]


def use_job(world: Communicator) -> None:
    """Let ``ddl.world()`` be ``world``, which ``begin_job`` has made; the one before stays as it is."""
    with state.lock:
        state.world = world


def end_job(world: Communicator, patience: Optional[float] = None) -> None:
    """Leave the job of ``world``, which ``begin_job`` has made. Idempotent, not collective.

    A store in this process ends when all have left, or after ``patience`` seconds (None: those of an operation).
    """
    with state.lock:
        if state.world is world:
            state.world = None
        world._group.close()
        world._group.end_stuck()  # this process goes on
        _leave(world)
        _retire(world._group)
        _end_store(world.job, patience)


def _leave(world: Communicator) -> None:
    world._group.close()
    world.job.close()


def _end_store(job: Job, patience: Optional[float]) -> None:
    """Let the store end in the background, when all ranks have left."""
    state.jobs.discard(job)
    server, job.server = job.server, None
    if server is None:
        return
    limit = job.settings.timeout if patience is None else patience
    at_exit.register(server.close_when_alone, limit)  # where this process ends before the thread
    threading.Thread(target=_close_when_alone, args=(server, limit), name="ddl-job", daemon=True).start()


def _close_when_alone(server: StoreServer, patience: float) -> None:
    server.close_when_alone(patience)
    at_exit.unregister(server.close_when_alone)


def shutdown() -> None:
    """Do what ``ddl.shutdown`` does."""
    with state.lock:
        job = _leave_world()
        if job is not None:
            _end_store(job, None)


def _leave_world() -> Optional[Job]:
    if state.world is None:
        return None
    world, state.world = state.world, None
    timeline.stop()
    _leave(world)
    _retire(world._group)
    return world.job


def leave_all() -> None:
    """Say goodbye in every job that this process is still in, as at its exit; stores that it has end last.

    All jobs first: two processes may have the stores of two jobs, and must not wait for one another.
    """
    with state.lock:
        _leave_world()
        jobs = list(state.jobs)
        for job in jobs:
            job.close()
        for job in jobs:
            if job.server is not None:
                job.server.close_when_alone(job.settings.timeout)


def next_generation(said: Dict[str, Any]) -> Dict[int, Any]:
    """Come to the job's next generation of ranks, whose communicator ``world()`` returns then. For ``ddl.elastic``.

    Collective over the members of that generation, blocking. Communicators made before are closed. ``said``, which JSON
    can hold, is told to all. Returns what each rank has said. Raises ``InvalidState`` where ranks do not come and
    go, ``LeftOut`` where this process is left out or the job ends, ``RendezvousError`` where time runs out.
    """
    with state.lock:
        if state.world is None or state.world.job.generations is None:
            raise InvalidState(
                "the ranks of this job do not come and go; start it by ddlrun --min-np, or set DDL_ELASTIC=1"
            )
        before = state.world._group
        before.close()
        group, values = elastic.advance(before.job, said)
        before.end_stuck()
        _retire(before, math.inf)  # the job sees ends
        state.world = Communicator(group)
        return values


def _forget_in_child() -> None:
    """A forked child (a data loader's worker, say) is no rank; it must not hold its parent's connections open."""
    for job in list(state.jobs):
        job.close_in_child()
    state.lock = threading.Lock()
    state.world = None
