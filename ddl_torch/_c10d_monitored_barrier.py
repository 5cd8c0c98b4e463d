"""``monitored_barrier``: says which ranks do not come, within a time of its own; and torch's function of that name.

torch's asks for gloo by name, and refuses any other backend. As it has no place where a backend could say that it has
one, too, torch's function is replaced by one that serves groups of DDL and passes all others on to it.
"""

from __future__ import annotations

import functools
import time
from datetime import timedelta
from typing import Any, Optional, Type

import torch
import torch.distributed as dist

from ddl import WaitTimeout

__all__ = ["extend_torch", "monitored_barrier"]

_TAG = -1  # of the messages that say "I am here"; a program's tags are not negative
_VERDICT = 2.0  # seconds that rank 0's word may take


def monitored_barrier(group: Any, seconds: float, every: bool) -> None:
    """Return when all ranks of ``group`` have called it; break the group with ``CollectiveTimeout`` after ``seconds``.

    The error, on all ranks, names the first rank that has not come, or all of them (``every``).
    """
    until = time.monotonic() + seconds
    here = torch.zeros(1, dtype=torch.uint8)
    late = []
    if group.rank() == 0:
        arrivals = [group.recv([torch.empty_like(here)], rank, _TAG) for rank in range(1, group.size())]
        for rank, arrival in enumerate(arrivals, start=1):
            if not _came(arrival, until - time.monotonic()):
                late.append(rank)
                if not every:
                    break
    else:
        group.send([here], 0, _TAG)
    release = group.barrier()
    if late or not _came(release, until - time.monotonic() + _VERDICT):
        late = late or [0]
        names = ", ".join(map(str, late))
        core = group.communicator._core
        core.fail("CollectiveTimeout", late[0], f"monitored_barrier: no sign of rank {names} for {seconds:g} s", True)
    release.wait()


def _came(work: Any, seconds: float) -> bool:
    try:
        return bool(work.wait(timedelta(seconds=max(seconds, 0.001))))  # 0 would be DDL's own timeout
    except WaitTimeout:
        return False


def extend_torch(served: Type[Any]) -> None:
    """Let ``torch.distributed.monitored_barrier`` serve groups of the class ``served``, too."""
    original = dist.monitored_barrier

    @functools.wraps(original)
    def extended(group: Any = None, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        target = dist.group.WORLD if group is None else group
        call = target.monitored_barrier if isinstance(target, served) else functools.partial(original, group)
        call(timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = extended
