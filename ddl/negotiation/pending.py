"""``Request``: an operation that is submitted under a name; ``Pending``: what its caller holds until it has ended."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Protocol

from ddl import clock
from ddl.communicator import Communicator
from ddl.errors import CommunicatorError, Error, InternalError, WaitTimeout
from ddl.negotiation import timeline
from ddl.negotiation.signature import Signature

__all__ = ["CompletedOperation", "Pending", "Request", "Waitable", "as_error"]


class Waitable(Protocol):
    """What an operation that was started returns."""

    def done(self) -> bool:
        """Return whether it has ended, well or not."""

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait for its end and return its result."""


class CompletedOperation:
    """An operation that has ended when it is started."""

    def __init__(self, result: Any = None) -> None:
        self._result = result

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Return the result."""
        return self._result


@dataclass
class Request:
    """``start`` makes the call on the communicator that it is given, when all ranks have submitted it.

    ``call``: the same, which ends before it returns, for a caller that waits anyway; the result is ``start``'s.
    ``attempt``: the same without a result, for a caller that must not sleep: returns the work that goes on if it would
    have to sleep, else None. Without ``attempt`` such a caller may sleep, in ``call``. ``name``: unique among what this
    rank has pending; empty: paired with the other ranks' by the order of submission. ``breaks``: it is a part of a
    step. If it failed, some ranks would submit the rest and others not. So if ranks submit it differently, nothing is
    run any more.
    """

    signature: Signature
    start: Callable[[Communicator], Waitable]
    name: str = ""
    call: Optional[Callable[[Communicator], Any]] = None
    breaks: bool = False
    attempt: Optional[Callable[[Communicator], Optional[Waitable]]] = None

    def text(self) -> str:
        """Return it for people."""
        return f"{self.name!r}: {self.signature.text()}" if self.name else self.signature.text()


class Keeper(Protocol):
    """Who brings operations to the other ranks: the ``Negotiator``."""

    waiting: Dict[int, Callable[[], str]]  #: says what a thread waits for, by its identifier

    def end_overdue(self, pending: Pending) -> None:
        """Break the communicator, unless the operation was just about to be started."""

    def in_words(self, request: Request, error: Error) -> Error:
        """Return ``error``, which says now which operation it has ended."""


class Pending:
    """An operation that was submitted, and has so many seconds until all ranks have done so. Any thread may wait."""

    # What most of them leave so: to set it would take longer than to submit them.
    round = 0  #: rounds of ballots that had ended when it was submitted
    agreed = False  #: it has been started, or has failed
    _work: Optional[Waitable] = None  # None: it has ended
    _result: Any = None
    _error: Optional[Exception] = None
    _recorded = False

    def __init__(self, request: Request, keeper: Keeper, seconds: float) -> None:
        self.request = request
        self._keeper = keeper
        self._submitted = self._started = clock.now()
        self._deadline = self._submitted + seconds
        self._gate = threading.Lock()  # open when it is agreed; a threading.Event would take 2 us to make
        self._gate.acquire()

    @property
    def overdue(self) -> bool:
        """Whether all ranks should have submitted it by now."""
        return clock.now() >= self._deadline

    def started(self, work: Waitable, since: float) -> None:
        """All ranks have submitted it, and it is under way ``since`` then (``clock.now``)."""
        self._work = work
        self._started = since
        self._open()

    def ended(self, result: Any, since: float) -> None:
        """As ``started``, and it has ended well."""
        self._result = result
        self._started = since
        self._open()

    def failed(self, error: Exception) -> None:
        """It will not be run."""
        self._error = error
        self._open()

    def _open(self) -> None:
        if not self.agreed:
            self.agreed = True
            self._gate.release()

    def settled(self, seconds: float = -1) -> bool:
        """Return whether it has been started or has failed; wait so many seconds for that, or for ever."""
        if not self.agreed and self._gate.acquire(timeout=seconds):
            self._gate.release()  # for others who wait
        return self.agreed

    def done(self) -> bool:
        """Return whether it has ended, well or not. Does not block."""
        return self.agreed and (self._work is None or self._work.done())

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait until it has ended and return its result; ``timeout`` in seconds, None: DDL_TIMEOUT.

        DDL_TIMEOUT counts until all ranks have submitted it, then anew, as for any operation. Raises ``WaitTimeout`` if
        ``timeout`` ran out (the operation goes on), ``CollectiveMismatch`` if ranks submitted different operations
        under its name, ``CollectiveTimeout`` if DDL_TIMEOUT ran out, or what it ended with.
        """
        limit = None if timeout is None else clock.now() + timeout
        if not self.agreed:
            until = self._deadline if limit is None else min(self._deadline, limit)
            thread = threading.get_ident()
            if limit is None:
                self._keeper.waiting[thread] = self.request.text
            try:
                settled = self.settled(max(0.0, until - clock.now()))
            finally:
                self._keeper.waiting.pop(thread, None)
            if not settled:
                if until < self._deadline:
                    raise WaitTimeout(f"{self.request.text()} has not ended within {timeout} s; it goes on")
                self._keeper.end_overdue(self)
                self.settled()  # it has failed, or the thread that starts it will
        if self._error is not None:
            # A new one: it will hold on to frames, and this must not hold on to it in turn.
            raise type(self._error)(*self._error.args)
        result = self._result
        if self._work is not None:
            try:
                result = self._work.wait(None if limit is None else max(0.0, limit - clock.now()))
            except CommunicatorError as error:
                raise self._keeper.in_words(self.request, error) from None
        recorder = timeline.active()
        if recorder is not None and not self._recorded:
            self._recorded = True
            verb = self.request.signature.verb
            recorder.operation(self.request.name or verb, verb, self._submitted, self._started, clock.now())
        return result


def as_error(error: BaseException) -> Error:
    """Return what an operation has ended with, as an error of DDL."""
    if isinstance(error, Error):
        return error
    return InternalError(f"while operations were agreed on: {error!r}; see the traceback on that rank")
