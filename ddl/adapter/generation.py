"""What an adapter does when the ranks of the job change: it asks for the next generation, and brings along what it has.

What stands on the communicator of all ranks (a distributed optimizer, say) is made anew for each generation. An adapter
says so once by ``bring_along``. All ranks do this in the same order, since it may be collective.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddl import api, jobs
from ddl._comm.elastic import connect_to_members
from ddl._comm.state_follower import StateFollower, Update
from ddl._comm.state_source import StateSource
from ddl._comm.state_stripes import Piece, digests
from ddl.adapter.fruitless import Fruitless
from ddl.errors import CommunicatorError, LeftOut

__all__ = ["Change", "Piece", "StateFollower", "StateSource"]
__all__ += ["begin_step", "bring_along", "digests", "follow_members", "give_state", "is_member", "members"]
__all__ += ["next_generation", "number", "ranks_may_change"]


log = logging.getLogger("ddl")


@dataclass(frozen=True)
class Change:
    """How the ranks of the job have changed, alike on all of them. ``said[r]``: what rank ``r`` of now has said."""

    generation: int
    said: Dict[int, Any]

    @property
    def newcomers(self) -> List[int]:
        """The ranks that were in no generation before."""
        return [rank for rank, said in self.said.items() if said["newcomer"]]


_brought: List[Callable[[Change], None]] = []
_fruitless = Fruitless()


def bring_along(again: Callable[[Change], None]) -> None:
    """Call ``again`` in every new generation, on all ranks, before the script goes on. It may be collective."""
    _brought.append(again)


def ranks_may_change() -> bool:
    """Return whether ranks may come and go in this job. Raises ``InvalidState`` before ``init``."""
    return api.world().job.generations is not None


def is_member() -> bool:
    """Return False where this process was started later, and has not come to a generation yet."""
    return api.world().job.is_member


def number() -> int:
    """Return the number of the generation that this process is in; the first is 0."""
    return api.world().job.generation


def members() -> Tuple[int, ...]:
    """Return the numbers of the processes in this generation, in the order of their ranks. Nobody has one again."""
    return api.world().job.members


def begin_step(finished: int) -> bool:
    """Note that this rank has finished so many steps. Return whether ``next_generation`` is to be called now.

    Where a planned change begins, it blocks until it is known after which step all ranks stop.
    """
    generations = api.world().job.generations
    return generations is not None and generations.step_finished(finished)


def give_state(size: Callable[[], int]) -> StateSource:
    """Let processes that join get this rank's state from now on. The script says what happens to it.

    ``size`` returns the bytes of the state, or about as many.
    """
    job = api.world().job
    assert job.generations is not None
    job.generations.source = source = StateSource(size, job.generations.limits.script_patience)
    return source


def follow_members(load: Update, update: Update) -> StateFollower:
    """Return what gets the members' state, for a process that is no member yet.

    ``load`` and ``update`` are called with what describes a snapshot, or what a step changes, and with its bytes.
    """
    job = api.world().job
    assert job.generations is not None
    connect = functools.partial(connect_to_members, job)
    return StateFollower(connect, load, update, job.generations.limits.script_patience)


def next_generation(finished: int, lost: Optional[CommunicatorError] = None, **said: Any) -> Change:
    """Come to the next generation of ranks. Collective over its members, blocking.

    ``finished`` (steps, or whatever shows that the training gets on) and ``said``, what JSON can hold, are told to all
    of them. ``lost``: the error by which the last generation ended, if it did. Ends the process with status 0 where it
    was asked to leave. Raises what ``ddl.jobs.next_generation`` does; ``LeftOut``, too, where the same ranks begin
    again and again and finish nothing; and ``CommunicatorError`` where another rank is lost meanwhile: then call it
    again.
    """
    said.update(finished=finished, newcomer=not is_member(), **_fruitless.says(number(), lost))
    _fruitless.pause()
    try:
        values = jobs.next_generation(said)
    except LeftOut as error:
        if not error.asked:
            raise
        log.info("%s", error)
        raise SystemExit(0) from None  # nothing is lost with it, and what follows in the script is for the others
    world, generations = api.world(), api.world().job.generations
    assert generations is not None
    _fruitless.formed(world.job.generation, values, world.who, generations.limits.patience)
    change = Change(world.job.generation, values)
    for again in _brought:
        again(change)
    return change
