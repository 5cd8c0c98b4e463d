"""What a verb of a process group returns: ``GroupWork``, as c10d wants it, around works of ``ddl``.

C++ callers of c10d (DDP above all) look only at ``wait`` and ``get_future``. A future needs somebody who completes it,
so the first one starts a thread of its group; who only waits, as most callers, needs none. An error must reach them as
a real one of the future: an exception that is only set in it, DDP would take for tensors.
"""

from __future__ import annotations

import datetime
import queue
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

import ddl
from ddl_torch._c10d_arguments import Part
from ddl_torch._c10d_messages import MatchedReceive

__all__ = ["GroupWork", "Waiter"]


class Waiter:
    """Threads that wait for the works of one group, in their order, and complete their futures.

    One waits at a time. Completing a future runs what its users have attached to it, which may wait for a later one:
    so before that, another thread takes over.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Optional[Tuple[Callable[[], None], Callable[[], None]]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait for a job, or soon will
        self._closed = False

    def ask(self, wait: Callable[[], None], complete: Callable[[], None]) -> None:
        """Let a thread call ``wait``, which blocks, and then ``complete``."""
        self._jobs.put((wait, complete))
        self._have_one()

    def close(self) -> None:
        """End the threads after what they have been asked for. Idempotent."""
        self._closed = True
        self._jobs.put(None)

    def _have_one(self) -> None:
        with self._lock:
            if self._idle > 0 or self._closed:
                return
            self._idle += 1
        threading.Thread(target=self._run, name="ddl-torch", daemon=True).start()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)  # for the next thread
                return
            wait, complete = job
            wait()
            with self._lock:
                self._idle -= 1
            self._have_one()
            complete()
            with self._lock:
                if self._idle > 0:
                    return
                self._idle += 1


class GroupWork(dist.Work):
    """One verb under way. Any thread may wait for it."""

    def __init__(self, outputs: List[torch.Tensor], parts: Sequence[Part], waiter: Waiter) -> None:
        super().__init__()
        self._outputs = outputs
        self._works = [work for work, _ in parts if work is not None]
        self._finishes = [finish for _, finish in parts if finish is not None]
        self._waiter = waiter
        self._lock = threading.Lock()
        self._future: Optional[torch.futures.Future[List[torch.Tensor]]] = None

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Wait until the results are there; raise the error that the verb ended with.

        ``timeout``: none, or 0, for DDL's own. ``WaitTimeout`` if it has run out; the verb goes on.
        """
        seconds = timeout.total_seconds() if timeout else None
        for work in self._works:
            work.wait(seconds)
        with self._lock:
            while self._finishes:
                self._finishes.pop()()
        return True

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not."""
        return all(work.done() for work in self._works)

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[Exception]:
        """Return the error that it ended with, if it has."""
        try:
            if self.is_completed():
                self.wait()
        except ddl.Error as error:
            return error
        return None

    def result(self) -> List[torch.Tensor]:
        """Wait, and return the tensors that were written."""
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Return the rank, in the group, from which a receive from any source has its message; wait for it first."""
        self.wait()
        sources = (work.source for work in self._works if isinstance(work, MatchedReceive) and work.source is not None)
        return next(sources, -1)

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Wait: there is no stream that could do it instead."""
        self.wait()

    def get_future(self) -> Any:
        """Return the future of the tensors that are written."""
        with self._lock:
            if self._future is None:
                ended: torch.futures.Future[None] = torch.futures.Future()
                self._future = ended.then(lambda _: self.result())
                self._waiter.ask(self._await_end, lambda: ended.set_result(None))
            return self._future

    def _await_end(self) -> None:
        for work in self._works:
            try:
                work.wait()
            except ddl.Error:
                return  # the future's own callback meets it again, and raises it where it belongs
