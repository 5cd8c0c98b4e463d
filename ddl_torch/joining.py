"""``join``: a rank without more data calls it while others go on.

The negotiator answers what others submit by name. A distributed optimizer sends its buckets in their order, without
negotiation. Each optimizer has its own communicator, on which a rank that has joined takes the same steps without
gradients, until a flag in the buckets says that all ranks have joined.
"""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, List, Optional, Union

import ddl
from ddl.adapter.generation import Change, bring_along
from ddl_torch._process_set import global_process_set, process_sets
from ddl_torch.gradients.delta import DeltaReducer
from ddl_torch.gradients.reducer import GradientReducer

__all__ = ["Optimizers", "join", "optimizers"]

Reducer = Union[GradientReducer, DeltaReducer]

_FOREVER = 1e8  #: seconds: others may go on for as long as they like while this rank has joined


class Optimizers:
    """The distributed optimizers over all ranks of the present job."""

    def __init__(self) -> None:
        self._world: Optional[ddl.Communicator] = None
        self._communicators = 0
        self._going_on: weakref.WeakSet[Reducer] = weakref.WeakSet()  # with ``join``
        self._all: weakref.WeakSet[Reducer] = weakref.WeakSet()  # also those of a part of the ranks, or of jobs before
        self._lost: weakref.WeakKeyDictionary[Reducer, str] = weakref.WeakKeyDictionary()
        #: What gives a reducer a communicator of the next generation's ranks, in the order in which they were made.
        self._follows: weakref.WeakKeyDictionary[Reducer, Callable[[], ddl.Communicator]] = weakref.WeakKeyDictionary()

    def communicator(self) -> ddl.Communicator:
        """Return a communicator of all ranks for a new one; ranks make them in the same order. Collective.

        That is the world for the first, which is mostly the only one.
        """
        world = ddl.world()
        if self._world is not world:
            self._world, self._communicators, self._going_on = world, 0, weakref.WeakSet()
        self._communicators += 1
        if self._communicators == 1:
            return world
        own = world.split(0)
        assert own is not None
        return own

    def add(self, reducer: Reducer, everybody: bool, again: Callable[[], ddl.Communicator]) -> None:
        """Take note of one; ``everybody``: it uses such a communicator, and ``again`` makes another one. Collective.

        It takes the place of those that have a parameter of it, as where a notebook wraps its model again: when the
        old optimizer is collected differs by rank, and until then both would average.
        """
        names = reducer.names
        for older in list(self._all):
            lost = [name for parameter, name in older.names.items() if parameter in names]
            if lost:
                older.release()
                self._lost[older] = lost[0]
                self._all.discard(older)
                self._going_on.discard(older)
        self._all.add(reducer)
        if everybody:
            self._going_on.add(reducer)
            self._follows[reducer] = again

    def follow(self, change: Change) -> None:
        """Let the optimizers over all ranks go on with the ranks that there are now. Collective, blocking."""
        if len(self._follows) > 1:  # to look for what is left of older ones takes a tenth of a second
            gc.collect()  # what hangs in a cycle goes at another time on each rank
        for reducer, again in list(self._follows.items()):
            if reducer in self._all:
                reducer.go_over_to(again(), afresh=bool(change.newcomers))
                self._going_on.add(reducer)

    def lost(self, reducer: Reducer) -> Optional[str]:
        """Return the name of the parameter for which another has taken its place, if one has."""
        return self._lost.get(reducer)

    def alive(self) -> List[Reducer]:
        """Return those over all ranks that are there, alike on all ranks."""
        gc.collect()  # what hangs in a cycle goes at another time on each rank
        return list(self._going_on) if self._world is ddl.world() else []


optimizers = Optimizers()
bring_along(optimizers.follow)


def join(device: int = -1) -> int:
    """Say that this rank has no more data; supply zeros to the all-reduces of the others until all have said so.

    Blocks, for as long as others go on; every rank calls it. Returns the rank that did so last. ``device`` is
    Horovod's, and not used. Averages still divide by the number of all ranks. Steps of ``DistributedOptimizer`` over
    all ranks go on, too, but for ``op=Adasum``; if they have a closure, each call of it computes gradients. Whatever
    else is submitted meanwhile (all-gather, broadcast, all-to-all, reduce-scatter) is an error on the other ranks.
    Afterwards ``p.grad`` is None, and weights differ: broadcast those of the last rank.

    Raises ``InvalidState`` if an optimizer with ``op=Adasum`` is there, or if this rank has joined already;
    ``PeerLost`` and its like as ``allreduce``, though not ``CollectiveTimeout`` while all ranks live.

    >>> last = ddl_torch.join()
    >>> ddl_torch.broadcast_parameters(model.state_dict(), root_rank=last)
    """
    process_sets.open()
    reducers = optimizers.alive()
    steps = [reducer for reducer in reducers if isinstance(reducer, GradientReducer)]
    if len(steps) < len(reducers):
        raise ddl.InvalidState("join: a DistributedOptimizer with op=Adasum cannot go on without this rank's steps")
    joined = global_process_set.negotiator.join()
    with ThreadPoolExecutor(max_workers=max(1, len(steps)), thread_name_prefix="ddl-join") as threads:
        for done in [threads.submit(_go_on, reducer) for reducer in steps]:
            done.result()
    last: int = joined.wait()
    return last


def _go_on(reducer: GradientReducer) -> None:
    communicator, timeout = reducer.communicator, reducer.communicator.timeout
    communicator.set_timeout(_FOREVER)
    try:
        while reducer.step_without_gradients():
            pass
    finally:
        communicator.set_timeout(timeout)
