"""``Negotiator``: runs named operations on a communicator that only it uses.

Rounds of ballots (agreement.py) are very small all-gathers. The thread that drives them starts what they decide, so all
ranks start the same operations in the same order. A caller that waits drives them itself if no other thread does: then
a name takes one small all-gather, and no thread wakes. For callers that do not wait there is a thread, from the first
such call on. A caller that must not sleep drives as long as it need not wait, and leaves its round to the next driver.

A rank takes part in rounds while an operation of it is pending, or after it has joined. Until then the other ranks wait
for its ballot. While all ranks wait for the next submission of another, ballots become rarer.
"""

from __future__ import annotations

import threading
from functools import reduce
from operator import or_
from typing import Callable, FrozenSet, Optional, Sequence, Union

from ddl import _core, clock
from ddl.communicator import Communicator
from ddl.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    CommunicatorError,
    Error,
    InvalidArgument,
    InvalidState,
)
from ddl.negotiation import ballot, timeline
from ddl.negotiation.agreement import Agreement, Entry, News, RoundOutcome
from ddl.negotiation.ballot_exchange import BallotExchange, Vote
from ddl.negotiation.pending import CompletedOperation, Pending, Request, Waitable, as_error
from ddl.negotiation.signature import Signature
from ddl.negotiation.submissions import Submissions

__all__ = ["Negotiator"]

_FOREVER = 1e8  #: seconds: others may go on for as long as they like while this rank has joined
#: Seconds that the core may take, after the deadline, to say who holds up the ballots. It waits for the store's verdict
#: for so long; two more are for a crowded machine. With less, an operation would end before its culprit is known.
_VERDICT = _core.VERDICT_PATIENCE + 2.0
_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02  #: seconds before the next ballots if there was nothing new in the last ones


class Negotiator:
    """Submits operations to all ranks of ``communicator``, which it takes over and closes.

    ``absent(signature)`` returns what a rank that has joined does instead of an operation, as ``Request.start``; it
    raises ``InvalidArgument`` if that cannot be: the operation then fails on the ranks that submitted it.
    ``who``: how errors begin. ``ranks[r]``: the number in the job of rank ``r``, which errors name. An operation may
    wait for other ranks as long as one of ``communicator`` may take. Any thread may submit.
    """

    def __init__(
        self,
        communicator: Communicator,
        absent: Callable[[Signature], Callable[[Communicator], Waitable]],
        who: str,
        ranks: Sequence[int],
    ) -> None:
        self._communicator = communicator
        self._absent = absent
        self._who = who
        self._ranks = ranks
        self._timeout = communicator.timeout  # seconds: of an operation
        self._agreement = Agreement(ranks)
        self._ballots = BallotExchange(communicator)
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        # Who goes from round to round: the thread, or the caller that waits for this operation.
        self._driver: Union[None, threading.Thread, Pending] = None
        self._submissions = Submissions(self._agreement)
        self._joining: Optional[Pending] = None
        self._pause = _PAUSE
        self._error: Optional[Error] = None
        self._thread: Optional[threading.Thread] = None
        calls = communicator._group.named_calls  # where the agent sees what is waited for
        calls.is_used, calls.texts = True, self._submissions.texts
        self.waiting = calls.waiting

    # --- submitting ---

    def submit(self, request: Request) -> Pending:
        """Submit an operation and return at once.

        Raises ``InvalidArgument`` if its name is pending on this rank or cannot be sent, ``InvalidState`` if this rank
        has joined, and what has broken the communicator.
        """
        pending = Pending(request, self, self._timeout)
        with self._lock:
            self._take(pending)
            self._call_thread()
        return pending

    def run(self, request: Request) -> object:
        """Submit an operation, wait for its end and return its result. Raises as ``submit`` and ``Pending.wait`` do."""
        pending = Pending(request, self, self._timeout)
        vote = None
        try:
            with self._lock:
                if self._driver is None and self._error is None and self._joining is None:
                    if self._ballots.flying is None and timeline.active() is None:
                        vote = self._submissions.add_alone(pending)
                if vote is None:
                    self._take(pending)
                if self._driver is None:
                    self._driver = pending
                else:
                    self._wake.notify_all()
            if self._driver is pending:
                self.waiting[threading.get_ident()] = request.text
                self._drive(until=pending, alone=vote)
        finally:  # also where Ctrl-C came in between
            self.waiting.pop(threading.get_ident(), None)
            if vote is not None and not pending.agreed and self._error is None:
                with self._lock:
                    self._agreement.submit(request.name, request.signature)  # it was not voted on
            if self._driver is pending:
                self._stop_driving()
        return pending.wait()

    def attempt(self, request: Request) -> Pending:
        """Submit an operation, and end it if all ranks are there by now; else it goes on as one of ``submit``.

        For a caller that would hold up others by sleeping: it is kept for as long as a rank waits awake, at most.
        Raises as ``submit`` does.
        """
        pending = Pending(request, self, self._timeout)
        try:
            with self._lock:
                self._take(pending)
                if self._driver is None and self._ballots.flying is None:
                    self._driver = pending
                else:
                    self._call_thread()
            if self._driver is pending:
                self._drive(until=pending, awake=True)
        finally:  # also where Ctrl-C came in between
            if self._driver is pending:
                self._stop_driving()
        return pending

    def join(self) -> Pending:
        """Say that this rank has no more data, and supply zeros until all ranks say so, for however long they go on.

        Returns at once; ``wait`` returns the rank that did so last. Raises ``InvalidState`` if it has joined already.
        """
        with self._lock:
            request = Request(Signature("join"), lambda _: CompletedOperation())
            if self._error is not None:
                raise self.in_words(request, self._error)
            if self._joining is not None:
                raise InvalidState(f"{self._who} join: this rank has joined already")
            pending = self._joining = Pending(request, self, _FOREVER)
            self._agreement.join()
            self._call_thread()
        return pending

    def close(self, reason: str = "DDL has been shut down") -> None:
        """Leave: what is pending, and whatever comes, fails with ``InvalidState``. Not collective. Idempotent."""
        self._fail(InvalidState(reason))
        self._communicator.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _take(self, pending: Pending) -> None:
        request = pending.request
        if self._error is not None:
            raise self.in_words(request, self._error)
        if self._joining is not None:
            raise InvalidState(f"{self._who} {request.text()}: this rank has joined; it submits nothing until all have")
        try:
            self._submissions.add(pending)
        except ValueError as error:
            raise InvalidArgument(f"{self._who} {request.text()}: {error}") from None

    # --- driving ---

    def _call_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ddl-negotiator", daemon=True)
            self._thread.start()
        self._wake.notify_all()

    def _serve(self) -> None:
        while True:
            with self._lock:
                while self._error is None and (self._driver is not None or not self._agreement.waiting):
                    self._wake.wait()
                if self._error is not None:
                    return
                self._driver = self._thread
            try:
                self._drive(until=None)
            finally:
                self._stop_driving()

    def _stop_driving(self) -> None:
        with self._lock:
            self._driver = None
            if self._agreement.waiting and self._error is None:
                self._call_thread()

    def _drive(self, until: Optional[Pending], awake: bool = False, alone: Optional[Vote] = None) -> None:
        """Go from round to round until ``until`` has been started, or else while this rank waits for others.

        ``awake``: it is one round at most, and left to the next driver where that would mean to sleep. ``alone``: the
        ballot that ``add_alone`` has given ``until``.
        """
        try:
            if alone is not None and until is not None:
                self._round_alone(until, alone)
            while self._error is None and (self._agreement.waiting if until is None else not until.agreed):
                self._round(until, awake)
                if awake:
                    return
        except CommunicatorError as error:
            self._fail(error)
        except BaseException as error:  # of this rank alone: the others would wait for it
            broken = as_error(error)
            self._fail(broken)
            self._communicator.abort(f"{self._who} {broken}")
            if not isinstance(error, Error):
                raise

    def _round(self, until: Optional[Pending], awake: bool) -> None:
        news = self._exchange_ballots(awake)
        if news is None:
            return
        self._submissions.rounds += 1
        with self._lock:
            run = self._agreement.unanimous(self._ballots.cast)
        if run is None:
            self._decide(news, until, awake)
            return
        self._pause = _PAUSE
        for entry in run:
            self._start(entry, until, awake)

    def _round_alone(self, pending: Pending, vote: Vote) -> None:
        """Make the first round of an operation that is known, and all that is submitted here: the usual one, quick."""
        request = pending.request
        self._ballots.gather(vote, (), self._timeout, False)
        self._submissions.rounds += 1
        with self._lock:
            alone = self._agreement.unanimous(self._ballots.cast) is not None
            if alone:
                known = self._submissions.settle(request.name)
            else:
                self._agreement.was_not_alone(request.name, request.signature)
        if not alone:
            self._decide((), pending, False)
        elif known is pending:  # else it has failed, with all that was pending
            self._pause = _PAUSE
            self._begin(pending, pending, False)

    def _decide(self, news: News, until: Optional[Pending], awake: bool) -> None:
        """Find out from the ballots, and from what ranks say besides, what is to be done, and do it."""
        flags, entries = ballot.unpack(self._ballots.cast)
        everybody = self._communicator.allgather_object(news) if reduce(or_, flags) & ballot.NEWS else ()
        with self._lock:
            outcome = self._agreement.decide(flags, entries, everybody)
        self._act(outcome, until, awake)
        if outcome.quiet and not outcome.run and not outcome.failed:
            if not awake:
                self._rest()
        else:
            self._pause = _PAUSE

    def _exchange_ballots(self, awake: bool) -> Optional[News]:
        """Gather the ballots of a round; return what this rank has to say besides. None: it cannot be done now."""
        if self._ballots.flying is not None:
            return self._ballots.land()
        recorder = timeline.active()
        if recorder is not None and recorder.mark_cycles:
            recorder.cycle()
        with self._lock:
            oldest = self._submissions.oldest
            overdue = oldest is not None and oldest.overdue
            vote, news = self._agreement.vote()
            # Others may go on for as long as they like while this rank has joined.
            patience = _FOREVER if self._joining is not None and oldest is None else self._timeout
        if oldest is not None and overdue:
            self.end_overdue(oldest, driving=True)
            return None
        return self._ballots.gather(vote, news, patience, awake)

    def _rest(self) -> None:
        """Nobody says anything new: let this rank's computation have the core for a moment."""
        with self._lock:
            if not self._agreement.fresh and self._error is None:
                self._wake.wait(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _act(self, outcome: RoundOutcome, until: Optional[Pending], awake: bool) -> None:
        """Do what the round has brought."""
        for entry in outcome.run:
            self._start(entry, until, awake, outcome.joined)
        for name, reason in outcome.failed:
            pending = self._settled(name)
            if pending is not None:
                text = (
                    f"{self._who} {pending.request.text()}: {reason}; nothing was sent; submit it alike on every rank"
                )
                pending.failed(CollectiveMismatch(text))
                if pending.request.breaks:
                    self._fail(CollectiveMismatch(text))
        if outcome.last_joined >= 0 and self._error is None:
            with self._lock:
                joining, self._joining = self._joining, None
            assert joining is not None
            joining.ended(outcome.last_joined, clock.now())

    def _start(self, entry: Entry, until: Optional[Pending], awake: bool, joined: FrozenSet[int] = frozenset()) -> None:
        """Start what all ranks have submitted, or what this rank does in its place; refuse what joined ranks cannot."""
        name, signature = entry
        pending = self._settled(name)
        try:
            absent = self._absent(signature) if joined else None
        except InvalidArgument as error:
            if pending is not None:
                others = ", ".join(str(self._ranks[rank]) for rank in sorted(joined))
                pending.failed(CollectiveMismatch(f"{self._who} {pending.request.text()}: {error}: rank(s) {others}"))
            return
        if pending is not None:
            self._begin(pending, until, awake)
            return
        assert absent is not None
        try:
            absent(self._communicator)
        except InvalidArgument as error:
            if not error.on_all_ranks:
                raise

    def _begin(self, pending: Pending, until: Optional[Pending], awake: bool) -> None:
        """Start what all ranks have submitted, this one, too."""
        now = clock.now()
        try:
            if pending is until and awake and pending.request.attempt is not None:
                pending.started(pending.request.attempt(self._communicator) or CompletedOperation(), now)
            elif pending is until and pending.request.call is not None:
                pending.ended(pending.request.call(self._communicator), now)
            else:
                pending.started(pending.request.start(self._communicator), now)
        except BaseException as error:  # its caller gets the error from here: it is not pending any more
            if isinstance(error, InvalidArgument) and error.on_all_ranks:
                pending.failed(error)
                return
            pending.failed(self.in_words(pending.request, as_error(error)))
            raise

    def _settled(self, name: str) -> Optional[Pending]:
        """Return the operation if this rank had submitted it; one without a name makes way for the next."""
        with self._lock:
            return self._submissions.settle(name)

    # --- failing ---

    def _fail(self, error: Error) -> None:
        """Fail everything that is pending, and whatever comes. The first error stays."""
        error = error.with_traceback(None)  # whose frames hold on to the communicator, and to the error
        with self._lock:
            if self._error is None:
                self._error = error
            failed = [*self._submissions.take_all(), *([self._joining] if self._joining else [])]
            self._joining = None
            self._wake.notify_all()
        for pending in failed:
            pending.failed(self.in_words(pending.request, self._error, ", which not all ranks had submitted"))

    def in_words(self, request: Request, error: Error, when: str = "") -> Error:
        """Return what has broken the communicator, in the words of an operation that it ends."""
        return type(error)(f"{self._who} {request.text()}{when}: {error.reason or error}")

    def end_overdue(self, pending: Pending, driving: bool = False) -> None:
        """Break the communicator if not all ranks have submitted an operation in time.

        The last ballots tell which ranks have not, if they were cast after it was submitted. If they were not, a rank
        keeps everybody from ending a round: the core waits for it, too, and soon says which one it is.
        """
        request = pending.request
        if not driving and self._driver is not None and not self._submissions.has_been_voted_on(pending):
            pending.settled(_VERDICT)
        with self._lock:
            if pending not in self._submissions:
                return
            known = self._submissions.has_been_voted_on(pending)
            me = self._ranks[self._communicator.rank]  # it may have submitted it after the last round
            missing = [rank for rank in self._agreement.missing(request.name) if rank != me and known]
        who = f"rank(s) {', '.join(map(str, missing))} did not submit it, as far as this rank knows" if missing else ""
        reason = (
            f"nothing after {self._timeout:g} s (DDL_TIMEOUT){who and ': '}{who}; submit it on all ranks, or give them "
            "more time"
        )
        self._fail(CollectiveTimeout(reason))
        # Nobody is blamed: this rank has only noticed it.
        self._communicator._core.fail("CollectiveTimeout", -1, f"{request.text()}: {reason}", True)
