"""Process groups whose ranks change: ``init_process_group("ddl", enable_reconfigure=True)`` of torch 2.14 and later.

Such a group has a job of its own for its present ranks (meeting.py). It begins without any. Reconfiguring makes
another job beside the one that it has; the new job takes the place of the old one only when all ranks have come.
torchft.py does the same under torchft's names.
"""

from __future__ import annotations

import datetime
import os
from typing import Any, Callable, List, Optional, Tuple

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

import ddl
from ddl import InvalidState
from ddl.adapter.joining import JobBeside, Settings
from ddl_torch._untraced import untraced
from ddl_torch.c10d.meeting import MeetingAttempt, RankHandle
from ddl_torch.c10d.messages import channels_of
from ddl_torch.c10d.process_group import DDLProcessGroup
from ddl_torch.c10d.work import GroupWork

__all__ = ["ChangingProcessGroup", "ReconfigurableProcessGroup"]

_GRACE = 1.0  # seconds that the others have to leave the job before, until its store goes

_init_group: Callable[..., None] = dist.ProcessGroup.__init__


class _BeforeFirst:
    """Stands for a part of a group until it has ranks: whoever needs that part gets the error instead."""

    def __get__(self, group: Any, owner: Any) -> Any:
        if group is None:
            return self
        raise InvalidState(group._no_ranks)


class ChangingProcessGroup(DDLProcessGroup):
    """A group of DDL that goes from job to job. It is made by each process alone, and has no ranks yet.

    ``rank`` and ``size`` are what it answers until then; ``timeout``: seconds of an operation (None: DDL_TIMEOUT).
    """

    _no_ranks = "this process group has no ranks yet"
    communicator: Any = _BeforeFirst()
    _starting: Any = _BeforeFirst()
    _blocking: Any = _BeforeFirst()
    _messages: Any = _BeforeFirst()

    def __init__(self, rank: int, size: int, timeout: Optional[float]) -> None:
        _init_group(self, rank, size)
        self._numbers = rank, size
        self._seconds = timeout
        self._job: Optional[JobBeside] = None
        self._prepare(timeout)

    # C++ asks by the longer names, Python by the shorter ones.

    def getRank(self) -> int:
        return self._numbers[0]

    def getSize(self) -> int:
        return self._numbers[1]

    rank, size = getRank, getSize

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Give each operation that begins from now on so much time, also after the next change. Not collective."""
        self._seconds = timeout.total_seconds()
        if self._job is not None:
            super().set_timeout(timeout)

    def errored(self) -> Optional[Exception]:
        """Return the error that has broken the group, None while it is whole or has no ranks. Does not block."""
        return None if self._job is None else super().errored()

    def abort(self) -> None:
        """Break the group on all its ranks, until it is configured again. Nothing happens if it has no ranks."""
        if self._job is not None:
            super().abort()

    def shutdown(self) -> None:
        """Leave the group; what is under way fails. Idempotent; it can be configured again."""
        self._drop()

    def _go_to(self, attempt: MeetingAttempt) -> None:
        """Make ``attempt``, and work with its ranks from now on. Collective, blocking. If it fails, nothing changes."""
        job = attempt.run(self._seconds)
        try:
            channels = channels_of(job.world, None)
        except BaseException:
            job.leave(_GRACE)
            raise
        job.wait_at_most(None)
        if self._job is not None:  # tell those that are left out at once
            self._messages.abort("the process group was reconfigured")
        self._drop(_GRACE)
        self._job = job
        self._numbers = job.world.rank, job.world.size
        self._take_up(job.world, channels, job.leave)

    def _drop(self, patience: Optional[float] = None) -> None:
        """Leave the job that there is: see ``JobBeside.leave``."""
        job, self._job = self._job, None
        if job is None:
            return
        self._waiter.close()
        job.leave(patience)
        for name in ("communicator", "_starting", "_blocking", "_messages"):
            delattr(self, name)


@untraced
class ReconfigurableProcessGroup(ChangingProcessGroup):
    """The group that ``init_process_group("ddl", enable_reconfigure=True)`` makes, without any communication.

    ``store``: torch's, by which its ranks meet; it must live as long as the group.
    """

    _no_ranks = (
        "this process group has no ranks yet, as it was made with enable_reconfigure=True; call "
        "torch.distributed._reconfigure first, on all its ranks, with their handles"
    )

    def __init__(self, store: Store, rank: int, size: int, timeout: Optional[float]) -> None:
        super().__init__(rank, size, timeout)
        self._store = store
        self._handle = RankHandle.new(rank)
        self._is_world = False  # whether ``ddl.world()`` is this group's

    @property
    def supports_reconfigure(self) -> bool:
        """Whether ``reconfigure`` works: with one backend. Raises ``InvalidState`` if there are several."""
        self._check_backends()
        return True

    def get_reconfigure_handle(self) -> str:
        """Return what the others need to know of this process. It stays the same."""
        self._check_backends()
        return self._handle.text()

    def reconfigure(self, opts: Any) -> GroupWork:
        """Make the ranks ``opts.handles`` the group: a list in its order, a set in that of their first ranks.

        Collective over these ranks, which all pass the same, and blocking: the work has ended. ``opts.uuid`` is a
        number that no attempt had before; ``opts.timeout``: how long it may take (None: DDL_START_TIMEOUT). On success,
        ranks and sequence numbers start anew, and what was under way fails with ``Aborted``; else the group stays as it
        was. Raises ``InvalidArgument`` for handles that make no sense, ``InvalidState`` for a number that was used
        before, ``RendezvousError`` naming the ranks that do not come.
        """
        self._check_backends()
        handles = [RankHandle.parse(text) for text in opts.handles]
        if isinstance(opts.handles, (set, frozenset)):
            handles.sort(key=lambda handle: (handle.number, handle.token))
        limit = (
            Settings.from_environ(os.environ).start_timeout if opts.timeout is None else opts.timeout.total_seconds()
        )
        store = PrefixStore(f"ddl/reconfigure/{opts.uuid}", self._store)
        attempt = MeetingAttempt(store, f"reconfigure with uuid {opts.uuid}", self._handle, handles, limit)
        is_world = self._is_world or not ddl.is_initialized()
        self._go_to(attempt)
        self._is_world = is_world
        if is_world:
            assert self._job is not None
            self._job.lead()
        return GroupWork([], [], self._waiter)

    def _check_backends(self) -> None:
        others: List[Tuple[str, str]] = list(self.others.names().items())
        if others:
            raise InvalidState(
                f"a process group of multiple backends ({', '.join(':'.join(pair) for pair in others)} beside ddl) "
                'cannot be reconfigured; make it with "ddl" alone'
            )
