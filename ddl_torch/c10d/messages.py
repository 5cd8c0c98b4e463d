"""Messages between two ranks for c10d: in their order, as in ``ddl``, and also with tags and from any source.

A message with tag 0 goes over the group's communicator, and nothing else is sent. A message with another tag goes over
a communicator for tagged messages, and a notice tells its receiver the tag. A receiver that wants a later message first
keeps the earlier ones. A receive from any source asks every rank for a notice as soon as it has sent more messages with
tag 0 than were received. It receives from the first rank that sends one.
"""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass
from typing import Any, Callable, DefaultDict, List, Optional

import torch
from torch._C._distributed_c10d import Store

import ddl
from ddl import Communicator, InvalidArgument, InvalidState, WaitTimeout, clock
from ddl.adapter.calls import calls_of
from ddl.adapter.operations import Waitable
from ddl_torch._streams import StreamOfCall, is_on_gpu
from ddl_torch.c10d.arguments import Part, moved
from ddl_torch.c10d.notices import Notices
from ddl_torch.c10d.verbs import C10dVerbs

__all__ = ["MatchedReceive", "Messages"]

_LOOK = 0.2  # seconds between two looks at whether the group is still whole


class MatchedReceive:
    """A receive that gets its message by a notice; to a caller, a ``ddl.Work``. ``timeout``: seconds from now on."""

    def __init__(
        self, messages: Messages, tensor: torch.Tensor, source: Optional[int], tag: int, timeout: float
    ) -> None:
        self.tensor, self.wanted, self.tag = tensor, source, tag
        self.source: Optional[int] = None  #: whose message it is, once it is known
        self.timeout = timeout
        self.until = clock.now() + timeout
        self._messages = messages
        self._matched = threading.Event()
        self._lock = threading.Lock()
        self._part: Part = (None, None)
        # It may be begun and finished by another thread than the caller's.
        self.stream = StreamOfCall(tensor.device) if is_on_gpu(tensor) else None
        self._join: Callable[[], None] = lambda: None
        self._error: Optional[ddl.Error] = None

    def match(self, source: int, part: Part) -> None:
        """``part`` brings the message of rank ``source``."""
        work, finish = part
        if self.stream is not None and finish is not None:
            finish = self.stream.finish(finish)
            self._join = finish.join
        self.source, self._part = source, (work, finish)
        self._matched.set()

    def fail(self, error: ddl.Error) -> None:
        """It ends with ``error``."""
        self._error = error
        self._matched.set()

    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        if not self._matched.is_set():
            return self._messages.broken()
        work = self._part[0]
        return work is None or work.done()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until the message is there; ``timeout`` in seconds, None: the group's. Errors are those of ``ddl``."""
        until = None if timeout is None else clock.now() + timeout
        while not self._matched.is_set():
            self._messages.check(self)
            if until is not None and clock.now() >= until:
                raise WaitTimeout(f"{self}: no such message has come within {timeout:g} s; the receive goes on")
            self._matched.wait(_LOOK if until is None else max(0.0, min(_LOOK, until - clock.now())))
        if self._error is not None:
            raise self._error
        work, _ = self._part
        if work is not None:
            work.wait(None if until is None else max(0.0, until - clock.now()))
        with self._lock:
            finish = self._part[1]
            if finish is not None:
                finish()
                self._part = (work, None)
            else:
                self._join()

    def __str__(self) -> str:
        source = "any source" if self.wanted is None else f"rank {self.wanted}"
        return f"recv({self.tensor.numel()} x {_kind(self.tensor)} from {source}, tag {self.tag})"


@dataclass
class _TaggedMessage:
    """A tagged message that was announced and belongs to no receive yet."""

    source: int
    tag: int
    kind: str
    count: int
    kept: Optional[torch.Tensor] = None  # taken off the stream, because a later one was wanted first
    work: Optional[Waitable] = None

    def __str__(self) -> str:
        return f"{self.count} x {self.kind} of rank {self.source}, tag {self.tag}"


@dataclass
class _TagCounts:
    """Messages with tag 0 between this rank and another."""

    sent: int = 0
    received: int = 0  # or about to be: a receive has been begun
    announced: int = 0  # how many it has said that it has sent to here
    asking: bool = False  # it was asked, and has not answered
    asked_beyond: Optional[int] = None  # it wants to know when more than so many have been sent to it

    @property
    def wanted(self) -> bool:
        return self.asked_beyond is not None and self.sent > self.asked_beyond


class Messages:
    """Sends and receives of one group. One thread of the program at a time, and that of the notices.

    ``tagged`` has the ranks of ``communicator``; ``timeout``: seconds that a receive may wait.
    """

    def __init__(self, communicator: Communicator, tagged: Communicator, store: Store, timeout: float) -> None:
        self._communicator, self._tagged_communicator = communicator, tagged
        self._calls = (calls_of(communicator), calls_of(tagged))
        self._plain, self._tagged = (C10dVerbs(each, blocking=False) for each in (communicator, tagged))
        self._timeout = timeout
        name, everybody = f"ddl/notices/{tagged.number}", communicator.size == communicator.identity.size
        size = communicator.size if everybody else 0
        self._notices = Notices(store, name, communicator.rank, size, self._handle)
        self._counts: DefaultDict[int, _TagCounts] = collections.defaultdict(_TagCounts)
        # Receives that wait for a notice, in the order of the calls; plain: from any source, and what comes after such.
        self._waiting_plain: List[MatchedReceive] = []
        self._waiting_tagged: List[MatchedReceive] = []
        self._arrived: List[_TaggedMessage] = []  # in the order of their notices
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the thread of the notices. Idempotent.

        A rank that asks later gets no answer; so each rank is told now how much was sent to it.
        """
        with self._lock:
            sent = {rank: counts.sent for rank, counts in self._counts.items() if counts.sent > 0}
            self._counts.clear()
        self._notices.close([] if self.broken() else [(rank, "sent", number) for rank, number in sent.items()])

    def set_timeout(self, seconds: float) -> None:
        """Give messages that are sent or received from now on so much time."""
        self._timeout = seconds
        self._tagged_communicator.set_timeout(seconds)

    def abort(self, reason: str) -> None:
        """Break what is under way: it raises ``ddl.Aborted``, on all ranks."""
        self._communicator.abort(reason)
        self._tagged_communicator.abort(reason)

    # --- what the group calls ---

    def send(self, tensor: torch.Tensor, dst: int, tag: int) -> Part:
        """Send to rank ``dst``."""
        if tag != 0:
            self._need_notices("send")
        elif self._notices.possible:
            self._check_group()
            self._notices.listen()  # others may ask from now on; not later: rank 0 may have received all, and leave
        with self._lock:
            if tag != 0:
                part = self._tagged.send(tensor, dst)
                self._notices.send(dst, "tagged", tag, _kind(tensor), tensor.numel())
                return part
            part, counts = self._plain.send(tensor, dst), self._counts[dst]
            counts.sent += 1
            self._answer(dst, counts)
        return part

    def recv(self, tensor: torch.Tensor, src: Optional[int], tag: int, timeout: Optional[float] = None) -> Part:
        """Receive from rank ``src``, or from any (None), what it sends next with ``tag``, of the same type and size.

        ``timeout``: seconds, where a notice is waited for (None: the group's).
        """
        if src is not None and tag == 0:
            with self._lock:
                if not self._waiting_plain:
                    part = self._plain.recv(tensor, src)
                    self._counts[src].received += 1
                    return part
        elif src is None and self._communicator.size == 1:
            raise InvalidArgument("recv: there is no other rank from which a message could come")
        if src is not None:
            self._calls[0].check_peer("recv", src)
        self._need_notices("recv")
        moved(tensor.new_empty(0), "recv")  # refuse what cannot be received before it takes somebody's message
        receive = MatchedReceive(self, tensor, src, tag, self._timeout if timeout is None else timeout)
        self._notices.listen()
        with self._lock:
            if tag == 0:
                self._waiting_plain.append(receive)
                self._match_plain()
            else:
                self._waiting_tagged.append(receive)
                self._match_tagged()
        return receive, None

    def _need_notices(self, verb: str) -> None:
        if not self._notices.possible:
            raise InvalidState(
                f"{verb}: tags and receives from any source need a store that can be cloned, and torch "
                f"{torch.__version__} has none; name the source and leave out the tag, or update torch"
            )
        self._check_group()  # torch's store may have gone with rank 0, and torch waits long for it

    def _check_group(self) -> None:
        """Raise the error with which the group has ended."""
        for calls in self._calls:
            calls.check()

    def error(self) -> Optional[ddl.Error]:
        """Return the error with which the group has ended, None while it is whole."""
        try:
            self._check_group()
        except ddl.Error as error:
            return error
        return None

    # --- what a receive asks ---

    def broken(self) -> bool:
        """Return whether no message can come any more."""
        return any(calls.failed for calls in self._calls) or self._notices.error is not None

    def check(self, receive: MatchedReceive) -> None:
        """Raise the error with which the group, or ``receive``, has ended."""
        self._check_group()
        if self._notices.error is not None:
            raise InvalidState(
                f"{receive}: torch's store, by which ranks tell tags, has ended: {self._notices.error}"
            ) from self._notices.error
        if clock.now() > receive.until:
            culprit = -1 if receive.wanted is None else receive.wanted
            text = f"no such message has come within {receive.timeout:g} s; does its sender give the same tag?"
            self._calls[0].fail(ddl.CollectiveTimeout, culprit, f"{receive}: {text}")

    # --- notices; with the lock held ---

    def _handle(self, source: int, notice: List[Any]) -> None:
        what, *values = notice
        with self._lock:
            if what == "asked":
                self._counts[source].asked_beyond = values[0]
                self._answer(source, self._counts[source])
            elif what == "sent":
                counts = self._counts[source]
                counts.announced, counts.asking = values[0], False
                self._match_plain()
            else:
                self._arrived.append(_TaggedMessage(source, *values))
                self._match_tagged()

    def _answer(self, rank: int, counts: _TagCounts) -> None:
        if counts.wanted:
            counts.asked_beyond = None
            self._notices.send(rank, "sent", counts.sent)

    def _match_plain(self) -> None:
        """Begin what can be, in the order of the calls: a later receive must not get an earlier one's message."""
        waiting = self._waiting_plain
        while waiting:
            source = waiting[0].wanted
            if source is None:
                ready = (rank for rank, counts in self._counts.items() if counts.announced > counts.received)
                source = next(ready, None)
            if source is None:
                break
            receive = waiting.pop(0)
            self._counts[source].received += 1
            self._begin(receive, source, self._plain)
        if waiting:
            self._ask()

    def _ask(self) -> None:
        for rank in range(self._communicator.size):
            counts = self._counts[rank]
            if rank != self._communicator.rank and not counts.asking:
                counts.asking = True
                self._notices.send(rank, "asked", counts.received)

    def _match_tagged(self) -> None:
        for receive in list(self._waiting_tagged):
            matching = (m for m in self._arrived if m.tag == receive.tag and receive.wanted in (None, m.source))
            message = next(matching, None)
            if message is not None:
                self._waiting_tagged.remove(receive)
                self._deliver(message, receive)

    def _deliver(self, message: _TaggedMessage, receive: MatchedReceive) -> None:
        fits = (message.kind, message.count) == (_kind(receive.tensor), receive.tensor.numel())
        for earlier in self._arrived[: self._arrived.index(message) + (0 if fits else 1)]:
            if earlier.source == message.source and earlier.kept is None:
                earlier.kept = torch.empty(earlier.count, dtype=getattr(torch, earlier.kind))
                earlier.work, _ = self._tagged.recv(earlier.kept, earlier.source)
        self._arrived.remove(message)
        kept, target = message.kept, receive.tensor
        if not fits:
            receive.fail(
                InvalidArgument(f"{receive} has got {message}, which is lost; pass a tensor like the sender's")
            )
        elif kept is None:
            self._begin(receive, message.source, self._tagged)
        else:
            receive.match(message.source, (message.work, lambda: target.detach().copy_(kept.view(target.shape))))

    def _begin(self, receive: MatchedReceive, source: int, verbs: C10dVerbs) -> None:
        try:
            begin = verbs.recv if receive.stream is None else receive.stream.bind(verbs.recv)
            receive.match(source, begin(receive.tensor, source))
        except ddl.Error as error:
            receive.fail(error)


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")
