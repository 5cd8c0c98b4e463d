"""Messages between two ranks for c10d: in their order, as in ``ddl``, and also with tags and from any source.

A message with tag 0 goes over the group's communicator, and nothing else is sent. A message with another tag goes over
two more communicators of the same ranks: a header that has the tag, and the message if it is short, and then one that
is not. Who wants a tag receives headers until it comes, and keeps the messages that come before it. (A header may be
received from any rank. On one communicator, such a receive could take a message for a header.)
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

import ddl
from ddl import Communicator, InvalidArgument, WaitTimeout, clock
from ddl.adapter.calls import Call, Collective, calls_of
from ddl.adapter.operations import Waitable
from ddl_torch._memory import in_host, is_ordinary
from ddl_torch._streams import StreamOfCall, is_on_gpu
from ddl_torch.c10d.arguments import Part, moved
from ddl_torch.c10d.verbs import C10dVerbs

__all__ = ["MatchedReceive", "Messages", "channels_of", "source_of"]

_LOOK = 0.2  # seconds between two looks at whether the group is still whole
_GLANCE = 0.001  # the same, while one of several headers may be the one that is waited for
_LONG = 30 * 86400.0  # seconds: a receive has a deadline of its own, and a header may be of another receive
_SHORT = 208  # bytes
_HEADER = struct.Struct(f"<qqq24s{_SHORT}s")  #: tag, elements, bytes that are in here (-1: none), type, the bytes


class MatchedReceive:
    """A receive whose message must be found; to a caller, a ``ddl.Work``. ``timeout``: seconds from now on."""

    def __init__(
        self, messages: Messages, tensor: torch.Tensor, source: Optional[int], tag: int, timeout: float
    ) -> None:
        self.tensor, self.wanted, self.tag = tensor, source, tag
        self.source: Optional[int] = None  #: whose message it is, once it is known
        self.timeout = timeout
        self.until = clock.now() + timeout
        self._messages = messages
        self._matched = False
        self._lock = threading.Lock()
        self._part: Part = (None, None)
        # It may be begun and finished by another thread than the caller's.
        self.stream = StreamOfCall(tensor.device) if is_on_gpu(tensor) else None
        self._join: Callable[[], None] = lambda: None
        self._error: Optional[ddl.Error] = None

    def matched(self) -> bool:
        """Return whether it has got a message, or an error."""
        return self._matched

    def wants(self, source: int, tag: int) -> bool:
        """Return whether it takes a message of rank ``source`` with ``tag``."""
        return tag == self.tag and self.wanted in (None, source)

    def match(self, source: int, part: Part) -> None:
        """``part`` brings the message of rank ``source``."""
        work, finish = part
        if self.stream is not None and finish is not None:
            finish = self.stream.finish(finish)
            self._join = finish.join
        self.source, self._part = source, (work, finish)
        self._matched = True

    def fail(self, error: ddl.Error) -> None:
        """It ends with ``error``."""
        self._error = error
        self._matched = True

    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        try:
            if not self._matched:
                self._messages.look(self, 0)
        except ddl.Error:  # of a group that has ended, which ``wait`` raises
            return True
        if not self._matched:
            return self._messages.broken()
        work = self._part[0]
        return work is None or work.done()

    def wait(self, timeout: Optional[float] = None) -> None:
        """Wait until the message is there; ``timeout`` in seconds, None: the group's. Errors are those of ``ddl``."""
        until = math.inf if timeout is None else clock.now() + timeout
        if not self._matched:  # mostly it comes at once
            self._messages.look(self, _LOOK if timeout is None else min(_LOOK, timeout))
        while not self._matched:
            self._messages.check(self)
            if clock.now() >= until:
                raise WaitTimeout(f"{self}: no such message has come within {timeout:g} s; the receive goes on")
            self._messages.look(self, max(0.0, min(_LOOK, until - clock.now(), self.until - clock.now())))
        if self._error is not None:
            raise self._error
        work, _ = self._part
        if work is not None:
            self._wait_for(work, until)
        with self._lock:
            finish = self._part[1]
            if finish is not None:
                finish()
                self._part = (work, None)
            else:
                self._join()

    def _wait_for(self, work: Waitable, until: float) -> None:
        end = min(until, self.until)
        try:
            work.wait(None if end == math.inf else max(0.0, end - clock.now()))
        except WaitTimeout:
            self._messages.check(self)
            raise

    def __str__(self) -> str:
        source = "any source" if self.wanted is None else f"rank {self.wanted}"
        return f"recv({self.tensor.numel()} x {_kind(self.tensor)} from {source}, tag {self.tag})"


@dataclass
class _TaggedMessage:
    """A tagged message whose header has come."""

    source: int
    tag: int
    count: int
    kind: str
    data: Optional[bytes] = None  # of a short message
    kept: Optional[torch.Tensor] = None  # a longer one, taken off the stream, because nobody wanted it yet
    work: Optional[Waitable] = None

    def __str__(self) -> str:
        return f"{self.count} x {self.kind} of rank {self.source}, tag {self.tag}"


class Messages:
    """Sends and receives of one group. One thread of the program at a time calls ``send`` and ``recv``.

    ``channels``: for headers and for messages with tags, by ``channels_of``. ``timeout``: seconds that a receive may
    wait.
    """

    def __init__(self, communicator: Communicator, channels: Sequence[Communicator], timeout: float) -> None:
        self._communicators = communicator, *channels
        self._all_calls = [calls_of(each) for each in self._communicators]
        self._header_calls = self._all_calls[1]
        self._plain, _, self._tagged = (C10dVerbs(each, blocking=False) for each in self._communicators)
        self._rank, self._size = communicator.rank, communicator.size
        self._timeout = timeout
        self._waiting: List[MatchedReceive] = []  # for messages with tags, in the order of the calls
        # What receives the next header from a rank, or from any (None).
        self._headers: Dict[Optional[int], Tuple[np.ndarray, Waitable]] = {}
        self._kept: List[_TaggedMessage] = []  # in the order in which they came
        self._sending: List[Waitable] = []  # of headers that are under way: each keeps its header
        self._lock = threading.Lock()
        self._let_take(_LONG)

    def set_timeout(self, seconds: float) -> None:
        """Give messages that are sent or received from now on so much time."""
        self._timeout = seconds

    def abort(self, reason: str) -> None:
        """Break what is under way: it raises ``ddl.Aborted``, on all ranks."""
        for communicator in self._communicators:
            communicator.abort(reason)

    # --- what the group calls ---

    def send(self, tensor: torch.Tensor, dst: int, tag: int) -> List[Part]:
        """Send to rank ``dst``. Whoever waits waits for the header, too: a message is lost that has none."""
        if tag == 0:
            return [self._plain.send(tensor, dst)]
        self._header_calls.check_peer("send", dst)
        data = _short(tensor)
        length = -1 if data is None else len(data)
        packed = _HEADER.pack(tag, tensor.numel(), length, _kind(tensor).encode(), data or b"")
        header = np.frombuffer(packed, np.uint8)
        with self._lock:
            self._let_take(self._timeout)
            try:
                work = self._header_calls.attempt(Call(Collective.SEND, header, None, None, root=dst))
                self._sending = [each for each in self._sending if not each.done()]
                if work is not None:
                    self._sending.append(work)
                header_part: Part = work, None
                return [header_part] if length >= 0 else [header_part, self._tagged.send(tensor, dst)]
            finally:
                self._let_take(_LONG)

    def _let_take(self, seconds: float) -> None:
        """Give what is begun from now on so much time."""
        for communicator in self._communicators[1:]:
            communicator.set_timeout(seconds)

    def recv(self, tensor: torch.Tensor, src: Optional[int], tag: int, timeout: Optional[float] = None) -> Part:
        """Receive from rank ``src``, or from any (None), what it sends next with ``tag``, of the same type and size.

        ``timeout``: seconds that a message with a tag is waited for (None: the group's).
        """
        if src is None and self._size == 1:
            raise InvalidArgument("recv: there is no other rank from which a message could come")
        if tag == 0:
            return self._plain.recv(tensor, src)
        if src is not None:
            self._header_calls.check_peer("recv", src)
        self._check_group()
        if not is_ordinary(tensor):
            moved(tensor.new_empty(0), "recv")  # refuse what cannot be received before it takes somebody's message
        receive = MatchedReceive(self, tensor, src, tag, self._timeout if timeout is None else timeout)
        with self._lock:
            self._receive_tagged(receive)
        return receive, None

    def _check_group(self) -> None:
        """Raise the error with which the group has ended."""
        for calls in self._all_calls:
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
        return any(calls.failed for calls in self._all_calls)

    def check(self, receive: MatchedReceive) -> None:
        """Raise the error with which the group, or ``receive``, has ended. It may have got a message before that."""
        if self.broken():
            with self._lock:
                self._take_headers()
            if receive.matched():
                return
            self._check_group()
        if clock.now() >= receive.until:
            culprit = -1 if receive.wanted is None else receive.wanted
            text = f"no such message has come within {receive.timeout:g} s; does its sender give the same tag?"
            self._all_calls[0].fail(ddl.CollectiveTimeout, culprit, f"{receive}: {text}")

    def look(self, receive: MatchedReceive, seconds: float) -> None:
        """Return when ``receive`` has its message, or may be nearer to it; after ``seconds`` at the latest."""
        with self._lock:
            self._take_headers()
            if receive.matched() or (seconds > 0 and self._header_at_once(receive)):
                return
            self._receive_headers()
            pair = self._headers.get(receive.wanted) or self._headers.get(None)
            if pair is None:  # as the group has ended
                return
            header = pair[1]
            seconds = seconds if len(self._headers) == 1 else min(seconds, _GLANCE)
        try:  # at once: then this thread receives it, and need not be woken by DDL's
            header.wait(seconds)
        except ddl.Error:  # time is up, or the group has ended, which ``check`` raises
            return
        with self._lock:
            self._take_headers()

    # --- messages with tags; with the lock held ---

    def _receive_tagged(self, receive: MatchedReceive) -> None:
        """Give it the first kept message that it wants, or have it wait."""
        self._take_headers()
        message = next((each for each in self._kept if receive.wants(each.source, each.tag)), None)
        if message is None:
            self._waiting.append(receive)
        else:
            self._kept.remove(message)
            self._deliver(message, receive)

    def _header_at_once(self, receive: MatchedReceive) -> bool:
        """Receive the next header from the rank that it wants, if it comes so soon that no thread need be woken."""
        rank = receive.wanted
        if rank is None or rank in self._headers or None in self._headers:
            return False
        header = np.empty(_HEADER.size, np.uint8)
        work = self._header_calls.attempt(Call(Collective.RECV, None, header, None, root=rank))
        if work is not None:
            self._headers[rank] = header, work
            return False
        self._take_header(rank, header)
        return True

    def _receive_headers(self) -> None:
        """Begin to receive the next header from each rank from which one is wanted; from any, if one wants that."""
        wanted = {receive.wanted for receive in self._waiting}
        for rank in [None] if None in wanted else wanted:
            if rank not in self._headers and None not in self._headers:
                header = np.empty(_HEADER.size, np.uint8)
                source = self._rank if rank is None else rank  # as C10dVerbs.recv
                work = self._header_calls.start(Call(Collective.RECV, None, header, None, root=source))
                self._headers[rank] = header, work

    def _take_headers(self) -> None:
        """Deal with the headers that have come: begin to receive each message, for who waits for it or to be kept."""
        while self._headers:
            ended = [rank for rank, (_, work) in self._headers.items() if work.done()]
            if not ended:
                return
            header, work = self._headers.pop(ended[0])
            try:
                work.wait()
                self._take_header(source_of(work), header)  # also where its sender has left since
            except ddl.Error:  # of a group that has ended, which ``check`` raises
                return

    def _take_header(self, source: int, header: np.ndarray) -> None:
        tag, count, length, kind, data = _HEADER.unpack(header.tobytes())
        short = data[:length] if length >= 0 else None
        message = _TaggedMessage(source, tag, count, kind.rstrip(b"\0").decode(), short)
        receive = next((each for each in self._waiting if each.wants(source, tag)), None)
        if receive is None:
            if short is None:
                self._keep(message)
            self._kept.append(message)
        else:
            self._waiting.remove(receive)
            self._deliver(message, receive)

    def _keep(self, message: _TaggedMessage) -> None:
        message.kept = torch.empty(message.count, dtype=getattr(torch, message.kind))
        message.work, _ = self._tagged.recv(message.kept, message.source)

    def _deliver(self, message: _TaggedMessage, receive: MatchedReceive) -> None:
        data, kept, target = message.data, message.kept, receive.tensor
        if (message.kind, message.count) != (_kind(target), target.numel()):
            if data is None and kept is None:
                self._keep(message)
            receive.fail(
                InvalidArgument(f"{receive} has got {message}, which is lost; pass a tensor like the sender's")
            )
        elif data is not None:
            receive.match(message.source, (None, lambda: _write(target, data)))
        elif kept is None:
            self._begin(receive, message.source)
        else:
            receive.match(message.source, (message.work, lambda: target.detach().copy_(kept.view(target.shape))))

    def _begin(self, receive: MatchedReceive, source: int) -> None:
        recv = self._tagged.recv
        try:
            begin = recv if receive.stream is None else receive.stream.bind(recv)
            receive.match(source, begin(receive.tensor, source))
        except ddl.Error as error:
            receive.fail(error)


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")


def _short(tensor: torch.Tensor) -> Optional[bytes]:
    """Return the bytes of a tensor on the CPU, if they fit into a header. Raises for what cannot be sent."""
    known = in_host(tensor)
    if known is not None:  # mostly: without a copy of the tensor
        length = tensor.numel() * tensor.element_size()
        return ctypes.string_at(known[1], length) if length <= _SHORT else None
    own = moved(tensor, "send")
    fits = own.is_cpu and own.numel() * own.element_size() <= _SHORT
    return own.numpy().tobytes() if fits else None


def _write(target: torch.Tensor, data: bytes) -> None:
    known = in_host(target)
    if known is not None:
        ctypes.memmove(known[1], data, len(data))
    elif data:
        target.detach().copy_(torch.frombuffer(bytearray(data), dtype=target.dtype).view(target.shape))


def channels_of(communicator: Communicator, timeout: Optional[float]) -> Tuple[Communicator, Communicator]:
    """Return two communicators of the same ranks, for messages with tags. Collective, blocking."""
    everybody = range(communicator.size)
    return communicator.subset(everybody, timeout=timeout), communicator.subset(everybody, timeout=timeout)


def source_of(work: Waitable) -> int:
    """Return the rank, in the group, whose message a receive that has ended has taken; -1: it is none."""
    source: Optional[int] = getattr(work, "source", None)
    return -1 if source is None else source
