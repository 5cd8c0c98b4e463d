"""Keeps a work alive while torch's C++ may wait for it, and no variable of Python holds it any more.

A work in Python has two halves: an object of C++, and the one of Python that has ``wait`` and ``get_future``. C++ holds
the first. If the second is gone, C++ calls its own ``wait`` instead, which never returns and has no deadline.

torch keeps both halves of what it gets from a process group's verb (older versions do not: ``Unwaited``). It does not
keep a work that a Python program made and hands over: DDP's ``join`` does that with one work per step
(``keep_what_reducers_hold``). No other function of torch that keeps a work takes one from Python; a test checks this.
"""

from __future__ import annotations

import functools
import threading
import weakref
from typing import Any, Dict, List

import torch.distributed as dist
from torch._C._distributed_c10d import Reducer

__all__ = ["Unwaited", "keep_what_reducers_hold", "torch_keeps_works"]

#: C++ holds two or three works of a group for which it has not waited, and no older ones than these.
_MOST = 1000


class Unwaited:
    """The works of one group that nobody has waited for, where torch does not keep them. Any thread may call it.

    At most ``_MOST``: a program may start works and never look at them again.
    """

    def __init__(self) -> None:
        self._works: Dict[int, Any] = {}
        self._lock = threading.Lock()

    def add(self, work: Any) -> None:
        """Keep ``work``; the oldest is dropped if there are too many."""
        with self._lock:
            self._works[id(work)] = work
            if len(self._works) > _MOST:
                del self._works[next(iter(self._works))]

    def remove(self, work: Any) -> None:
        """Keep ``work`` no longer: somebody has waited for it. Nothing happens if it was not kept."""
        with self._lock:
            self._works.pop(id(work), None)


@functools.cache
def torch_keeps_works() -> bool:
    """Return whether C++ that has called a verb in Python keeps the Python half of the work that it got."""
    refs: List[weakref.ref[Any]] = []
    base: Any = dist.ProcessGroup

    class ProbeWork(dist.Work):
        pass

    class ProbeGroup(base):  # type: ignore[misc]
        def barrier(self, _: Any = None) -> ProbeWork:
            work = ProbeWork()
            refs.append(weakref.ref(work))
            return work

    held = base.barrier(ProbeGroup(0, 1))  # C++, which calls the barrier above
    alive = refs[0]() is not None
    del held
    return alive


def keep_what_reducers_hold() -> None:
    """Let each ``Reducer`` of DDP hold the work by which it learns, in ``join``, how many ranks take part in a step.

    It holds one, until it gets the next.
    """
    held: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    reducer: Any = Reducer
    original = reducer._set_forward_pass_work_handle

    @functools.wraps(original)
    def set_and_hold(self: Any, work: Any, use_static_world_size: bool) -> None:
        held[self] = work
        original(self, work, use_static_world_size)

    reducer._set_forward_pass_work_handle = set_and_hold
