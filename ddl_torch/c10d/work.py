"""What a verb of a process group returns: ``GroupWork``, as c10d wants it, around works of ``ddl``.

C++ callers of c10d (DDP above all) look only at ``wait`` and ``get_future``. A future needs somebody who completes it,
so the first one starts a thread of its group; a caller that only waits, as most do, needs none. An error must be a real
error of the future: if an exception were only its value, DDP would take it for tensors. C++ that has waited takes the
value of the future without waiting again: the future of a work that has ended is complete from the start.
"""

from __future__ import annotations

import contextlib
import datetime
import queue
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from ddl import CollectiveTimeout, CommunicatorError, clock
from ddl.adapter.operations import Waitable, timeline
from ddl_torch._streams import FinishOnStream, StreamOfCall, gpu_of
from ddl_torch._tensors import writing
from ddl_torch._untraced import untraced
from ddl_torch.c10d.arguments import Finish, Part
from ddl_torch.c10d.lifetime import Unwaited
from ddl_torch.c10d.messages import source_of

__all__ = ["ThreadPerWork", "GroupWork", "Waiter", "error_type", "result_of"]


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
        """Let a thread call ``wait``, which blocks and raises nothing, and then ``complete``.

        After ``close``, when all works have ended, the caller does it.
        """
        with self._lock:
            closed = self._closed
            if not closed:
                self._jobs.put((wait, complete))
        if closed:
            wait()
            complete()
        else:
            self._have_one()

    def close(self) -> None:
        """End the threads after what they have been asked for. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)

    def _have_one(self) -> None:
        with self._lock:
            if self._idle > 0:
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


class ThreadPerWork:
    """A thread for each work that is asked about: for messages, which end in any order. Used like a ``Waiter``.

    One that waited for a message before it waits for a verb would hold up the verb's future, and all that need that
    before the message can be sent.
    """

    def ask(self, wait: Callable[[], None], complete: Callable[[], None]) -> None:
        """Let a thread call ``wait``, which blocks and raises nothing, and then ``complete``."""

        def run() -> None:
            wait()
            complete()

        threading.Thread(target=run, name="ddl-torch", daemon=True).start()


Asked = Union[Waiter, ThreadPerWork]


def result_of(error: Optional[Exception]) -> int:
    """Return the number of the ``WorkResult`` of a verb that has ended with ``error``, None: well."""
    if error is None:
        return 0
    return 1 if isinstance(error, CollectiveTimeout) else 2 if isinstance(error, CommunicatorError) else 100


def error_type(error: Optional[Exception]) -> Any:
    """Return torch's ``ErrorType`` of the error of a group, None: of a whole one."""
    from torch._C._distributed_c10d import ErrorType  # older versions of torch have none, and do not ask

    kinds = ErrorType.SUCCESS, ErrorType.TIMEOUT, ErrorType.COMM_ERROR
    return kinds[min(result_of(error), 2)]


def _no() -> bool:
    """Stand in for ``can_wait_on`` of a work that has none: only the host can wait for it."""
    return False


@untraced
class GroupWork(dist.Work):
    """One verb under way. Any thread may wait for it."""

    # What most verbs leave so: to set it takes longer than they do.
    _works: Tuple[Waitable, ...] = ()
    _finishes: Tuple[Finish, ...] = ()  # none when all have been called
    _device: Optional[torch.device] = None
    _write: Optional[Callable[[], None]] = None
    _future: Optional[torch.futures.Future[List[torch.Tensor]]] = None
    _when_ended: Optional[Callable[[], None]] = None
    _unwaited: Optional[Unwaited] = None

    def __init__(
        self, outputs: List[torch.Tensor], parts: Sequence[Part], waiter: Asked, unwaited: Optional[Unwaited] = None
    ) -> None:
        super().__init__()
        self._outputs = outputs
        for work, finish in parts:
            if work is not None:
                self._works = (*self._works, work)
            if finish is not None:
                self._finishes = (*self._finishes, finish)
        device = gpu_of(outputs)
        if device is not None:
            self._device = device
        if self._finishes:
            # Made by the thread that called the verb: what is left to do belongs on its stream.
            run = self._run_finishes
            self._write = run if device is None else StreamOfCall(device).finish(run)
        self._waiter = waiter
        self._lock = threading.Lock()
        if unwaited is not None:
            self._unwaited = unwaited
            unwaited.add(self)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        """Wait until the results are there; raise the error that the verb ended with.

        ``timeout``: none, or 0, for DDL's own. ``WaitTimeout`` if it has run out; the verb goes on.
        """
        if not self._works and self._write is None and self._when_ended is None and self._unwaited is None:
            return True  # it had ended when it was made
        until = clock.now() + timeout.total_seconds() if timeout else None
        try:
            if timeout or not self._can_wait_on_stream():
                for work in self._works:
                    work.wait(None if until is None else max(0.0, until - clock.now()))
            else:
                self._wait_on_stream()
        finally:
            if self._unwaited is not None and (self._ended() or self._can_wait_on_stream()):
                self._unwaited.remove(self)
        if self._finishes:
            self._finish()
        elif isinstance(self._write, FinishOnStream):
            self._write.join()
        tell, self._when_ended = self._when_ended, None
        if tell is not None:
            tell()
        return True

    def put_into(self, recorder: timeline.Timeline, row: str, verb: str, begun: float) -> None:
        """Tell a timeline of it, once, when somebody has waited for its end; ``begun`` by ``clock.now``."""
        if self._when_ended is None:  # else it is in, as the verb that made it
            self._when_ended = lambda: recorder.operation(row, verb, begun, begun, clock.now())

    def _can_wait_on_stream(self) -> bool:
        """Return whether a stream can wait instead of the host (DDL_GPU_WAIT=stream). Without effect."""
        return self._device is not None and all(getattr(work, "can_wait_on", _no)() for work in self._works)

    def _wait_on_stream(self) -> None:
        """Let the stream wait where the results are used next.

        That is the stream of the call if something is left to be done there, and else the one that is current here.
        """
        assert self._device is not None
        stream = self._write.stream if isinstance(self._write, FinishOnStream) else StreamOfCall(self._device)
        for work in self._works:
            work.wait_on(stream.handle)  # type: ignore[attr-defined]  # it can: see above

    def _ended(self) -> bool:
        return all(work.done() for work in self._works)

    def _finish(self) -> None:
        """Write the outputs, once. What raises an error does so again in the next call."""
        with self._lock, writing(*self._outputs):
            if self._write is not None:
                self._write()

    def _run_finishes(self) -> None:
        for finish in self._finishes:
            finish()
        self._finishes = ()

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not. If it has ended well, the results are there. Does not block."""
        if not self._ended():
            return False
        with contextlib.suppress(Exception):  # an error, too, is an end; ``exception`` returns it
            self.wait()
        return True

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[Exception]:
        """Return the error that it ended with, if it has."""
        try:
            if self.is_completed():
                self.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> List[torch.Tensor]:
        """Wait, and return the tensors that were written."""
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Return the rank, in the group, from which a receive from any source has its message; wait for it first."""
        self.wait()
        return next((source_of(work) for work in self._works), -1)

    _source_rank = source_rank

    def synchronize(self) -> None:
        """Wait, as ``wait`` does."""
        self.wait()

    def get_future(self) -> Any:
        """Return the future of the tensors that are written.

        A future of tensors on a GPU knows that GPU: whoever waits for it then has its own current stream wait for what
        wrote them, whichever thread did.
        """
        on_stream = self._can_wait_on_stream()
        with self._lock:
            known = self._future
            if known is None:
                devices: Optional[List[Union[int, str, torch.device]]]
                devices = None if self._device is None else [self._device]
                ended: torch.futures.Future[None] = torch.futures.Future(devices=devices)
                self._future = ended.then(lambda _: self.result())
        if known is None and (on_stream or self._ended()):
            ended.set_result(None)
        elif known is None:
            self._waiter.ask(self._await_end, lambda: ended.set_result(None))
        return self._future

    def get_future_result(self) -> Any:
        """Return the future of the number of a torch ``WorkResult``: how it has ended. It never holds an error."""
        result: torch.futures.Future[int] = torch.futures.Future()
        self._waiter.ask(self._await_end, lambda: result.set_result(result_of(self.exception())))
        return result

    def _await_end(self) -> None:
        with contextlib.suppress(Exception):  # the future's own callback meets it again, and raises it where it belongs
            for work in self._works:
                work.wait()
