"""``join``: what a rank calls that has no more data while others go on.

What others submit by name is answered by the negotiator. A distributed optimizer sends its buckets in their order,
without negotiation; each has a communicator for itself, on which a rank that has joined goes through the same steps
without gradients until a flag in the buckets says that nobody has come for its own sake any more.
"""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import List, Optional, Union

import ddl
from ddl_torch._delta import DeltaReducer
from ddl_torch._reducer import GradientReducer
from ddl_torch._where import global_process_set, process_sets

__all__ = ["Optimizers", "join", "optimizers"]

Reducer = Union[GradientReducer, DeltaReducer]


class Optimizers:
    """The distributed optimizers over all ranks of the job of now."""

    def __init__(self) -> None:
        self._world: Optional[ddl.Communicator] = None
        self._made = 0
        self._reducers: List[weakref.ref[Reducer]] = []

    def communicator(self) -> ddl.Communicator:
        """Return a communicator of all ranks for a new one; ranks make them in the same order. Collective.

        That is the world for the first, which is mostly the only one.
        """
        world = ddl.world()
        if self._world is not world:
            self._world, self._made, self._reducers = world, 0, []
        self._made += 1
        if self._made == 1:
            return world
        own = world.split(0)
        assert own is not None
        return own

    def add(self, reducer: Reducer) -> None:
        """Take note of one that uses such a communicator."""
        self._reducers.append(weakref.ref(reducer))

    def alive(self) -> List[Reducer]:
        """Return those that are there."""
        if self._world is not ddl.world():
            return []
        return [reducer for reducer in (ref() for ref in self._reducers) if reducer is not None]


optimizers = Optimizers()


def join(device: int = -1) -> int:
    """Say that this rank has no more data; supply zeros to the all-reduces of the others until all have said so.

    Blocks; every rank calls it. Returns the rank that did so last. ``device`` is Horovod's, and not used. Averages
    still divide by the number of all ranks. Steps of ``DistributedOptimizer`` over all ranks go on, too, but for
    ``op=Adasum``. Whatever else is submitted meanwhile (all-gather, broadcast, all-to-all, reduce-scatter) is an error
    on the other ranks. Afterwards ``p.grad`` is None, and weights differ: broadcast those
    of the last rank.

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
    while reducer.supply_nothing():
        pass
