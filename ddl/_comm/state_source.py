"""What a member gives to processes that join, while the training goes on: its stripe of a snapshot, then of each step.

A newcomer names a step, and asks several members, each for a different stripe of the state after that step. When that
step has ended, the member copies its stripe. From then on it copies its stripe of what each step brings (gradients that
are averaged, say), so that the newcomer can do these steps, too. A thread for each newcomer sends the copies.
"""

from __future__ import annotations

import collections
import logging
import select
import socket
import threading
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ddl import clock
from ddl._comm import object_codec
from ddl._comm.state_stripes import Piece, gather, stripe, total_bytes
from ddl.errors import Error, ProtocolError
from ddl.net.auth import recv_frame, send_frame

__all__ = ["StateSource"]

log = logging.getLogger("ddl")

_LOOK = 1.0  #: seconds after which it is looked whether a newcomer has hung up
_AHEAD = 64 << 20  #: bytes that may wait for a newcomer besides as many as its stripe of the state has

#: Returns what describes a state (plain data), and the state. It is read at once.
Reader = Callable[[], Tuple[Any, Sequence[Piece]]]


class _Copy(NamedTuple):
    header: Dict[str, Any]
    about: np.ndarray
    data: np.ndarray


class _StateStream:
    """What one newcomer is sent: part ``part`` of ``parts``, from the end of step ``step`` on.

    room: memory for the stripe of the snapshot.
    """

    def __init__(self, step: int, part: int, parts: int, room: np.ndarray) -> None:
        self.step, self.part, self.parts = step, part, parts  # ``step``: the last that was copied, then
        self.begun = False
        self._room = room
        self.waiting: Deque[_Copy] = collections.deque()
        self.over = ""  # why there is no more to come
        self._allowed = _AHEAD

    def add(self, kind: str, step: int, about: Any, pieces: Sequence[Piece]) -> None:
        total = total_bytes(pieces)
        start, stop = stripe(total, self.part, self.parts)
        described = object_codec.encode(about, allow_pickle=False) if self.part == 0 else np.empty(0, np.uint8)
        header = {"type": kind, "step": step, "total": total, "start": start, "stop": stop, "about": len(described)}
        copy, self._room = self._room, np.empty(0, np.uint8)
        if len(copy) != stop - start:
            copy = np.empty(stop - start, np.uint8)
        if kind == "snapshot":
            self._allowed += 2 * (stop - start)
        elif sum(len(waits.data) for waits in self.waiting) > self._allowed:
            self.over = "steps come faster than they can be sent"
            return
        gather(pieces, start, copy)
        self.waiting.append(_Copy(header, described, copy))
        self.step, self.begun = step, True


class StateSource:
    """The streams of a member. The script's thread says what happens; each stream has a thread of its own.

    size: returns the bytes of the state, or about as many.
    """

    def __init__(self, size: Callable[[], int], patience: float) -> None:
        self._size = size
        self.finished = 0  #: steps of this member
        self.is_changing = False  #: the ranks are changing: no step ends until that is over
        self._patience = patience
        self._changed = threading.Condition()
        self._streams: List[_StateStream] = []
        self._closed = False

    @property
    def is_asked(self) -> bool:
        """Whether anybody wants something. Costs nothing."""
        return bool(self._streams)

    def step_ended(self, finished: int, read: Reader) -> None:
        """The state is that after step ``finished``; ``read`` reads all of it."""
        self.finished = finished
        if self._streams:
            self._copy(lambda s: not s.begun and s.step == finished, "snapshot", finished, read)
            with self._changed:
                late = [s for s in self._streams if not s.begun and s.step < finished]
            self._end(late, f"step {finished} has ended already")

    def step_begins(self, step: int, read: Reader) -> None:
        """Step ``step`` is about to change the state; ``read`` reads what changes it."""
        if self._streams:
            self._copy(lambda s: s.begun and s.step == step - 1, "step", step, read)
            with self._changed:
                apart = [s for s in self._streams if s.begun and s.step != step]
            self._end(apart, f"it does not follow what came before: step {step}")

    def cannot_tell(self, why: str) -> None:
        """The state has changed in a way that cannot be told: newcomers must begin anew."""
        if self._streams:
            with self._changed:
                streams = [stream for stream in self._streams if stream.begun]
            self._end(streams, why)

    def close(self) -> None:
        """End all streams. Idempotent."""
        with self._changed:
            self._closed = True
        self._end(list(self._streams), "this rank leaves")

    def _copy(self, wants: Callable[[_StateStream], bool], kind: str, step: int, read: Reader) -> None:
        with self._changed:
            streams = [stream for stream in self._streams if not stream.over and wants(stream)]
            try:
                about, pieces = read() if streams else (None, [])
                for stream in streams:
                    stream.add(kind, step, about, pieces)
            except Exception as error:  # whatever a framework says of what it cannot read: the training goes on
                log.info("the state cannot be sent to a process that joins: %r", error)
                self._end(streams, f"it cannot be sent: {error!r:.200}")
            self._changed.notify_all()

    def _end(self, streams: Sequence[_StateStream], why: str) -> None:
        with self._changed:
            for stream in streams:
                stream.over = stream.over or why
            self._changed.notify_all()

    # --- the threads of the streams ---

    def serve(self, sock: socket.socket) -> None:
        """Send a newcomer what it asks for, until it hangs up. Blocking; raises where it does not behave."""
        asked = recv_frame(sock, clock.now() + self._patience)
        part, parts = asked.get("part"), asked.get("parts")
        if not (type(part) is type(parts) is int and 0 <= part < parts):
            raise ProtocolError(f"a process that joins asked for {asked!r:.200}, which makes no sense")
        start, stop = stripe(self._size(), part, parts)
        room = np.empty(stop - start, np.uint8)
        room.fill(0)  # the kernel gives the memory now, in this thread, and not while the training waits
        send_frame(sock, {"finished": self.finished, "changing": self.is_changing})
        asked = recv_frame(sock, clock.now() + self._patience)
        step = asked.get("step")
        if type(step) is not int or step < 0:
            raise ProtocolError(f"a process that joins asked for {asked!r:.200}, which makes no sense")
        stream = _StateStream(step, part, parts, room)
        del room
        with self._changed:
            stream.over = "this rank leaves" if self._closed else ""
            self._streams.append(stream)
        try:
            sock.settimeout(self._patience)
            self._send(sock, stream)
        except (OSError, Error) as error:
            log.debug("a process that joins has hung up: %s", error)
        finally:
            with self._changed:
                self._streams.remove(stream)

    def _send(self, sock: socket.socket, stream: _StateStream) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: stream.waiting or stream.over, _LOOK)
                copy = stream.waiting.popleft() if stream.waiting else None
            if copy is not None:
                send_frame(sock, copy.header)
                sock.sendall(copy.about.data)
                sock.sendall(copy.data.data)
            elif stream.over:
                send_frame(sock, {"type": "over", "why": stream.over})
                return
            elif _has_hung_up(sock):
                return


def _has_hung_up(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0)) and sock.recv(1, socket.MSG_PEEK) == b""
