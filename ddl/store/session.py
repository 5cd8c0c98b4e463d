"""One conversation over several connections, its *ways*: what each side of it keeps.

Every message goes over all ways, so it arrives as long as one of them works, and as fast as on the fastest. All ways
carry the messages in the same order, so numbers need not be sent: both sides agree on the number after which a way
begins, and count. A message that has already come is dropped. A way that is opened later first brings what the other
side has not confirmed. ``{"got": number}`` confirms; it is the only message without a number.

If a way ends in order, the process at its other end has closed it or has ended: then the whole conversation is over. So
a side that gives up a single way resets it.
"""

from __future__ import annotations

import collections
import socket
import struct
from typing import Deque, List, Optional

from ddl.errors import ProtocolError
from ddl.store.messages import Message

__all__ = ["Session", "Way", "broken", "close_way"]

_CONFIRM_EVERY = 16  #: messages


class Way:
    """One of the connections, as ``Session`` sees it."""

    heard = 0  #: number of the last message that came this way


class Session:
    """One side's view. The caller sees to it that one thread at a time uses it."""

    def __init__(self) -> None:
        self.got = 0  #: number of the last message that came
        self._said = 0  # of the last one sent
        self._kept: Deque[bytes] = collections.deque()  # the last frames sent, as many as are not confirmed
        self._confirmed = 0  # number of the last message that we have confirmed

    def keep(self, frame: bytes) -> None:
        """A message is about to be sent over all ways."""
        self._said += 1
        self._kept.append(frame)

    def lacking(self, number: object) -> List[bytes]:
        """Return the frames that the other side, which has got ``number`` messages, lacks."""
        return list(self._kept)[self._checked(number) - self._oldest :]

    def take(self, way: Way, message: Message) -> Optional[Message]:
        """Return a message that came on ``way``; None if it is known already, or only confirms. ProtocolError."""
        if message.keys() == {"got"}:
            # A slow way may bring an older number.
            for _ in range(self._checked(message["got"], at_least=0) - self._oldest):
                self._kept.popleft()
            return None
        way.heard += 1
        if way.heard <= self.got:
            return None
        self.got = way.heard
        return message

    def confirmation(self) -> Optional[Message]:
        """Return what the other side should be told now, if anything."""
        if self.got - self._confirmed < _CONFIRM_EVERY:
            return None
        self._confirmed = self.got
        return {"got": self.got}

    @property
    def _oldest(self) -> int:
        """Number of the last message that is not kept any more."""
        return self._said - len(self._kept)

    def _checked(self, number: object, at_least: Optional[int] = None) -> int:
        lowest = self._oldest if at_least is None else at_least
        if type(number) is not int or not lowest <= number <= self._said:
            raise ProtocolError(f"it has got {number!r:.100} messages, it says; {lowest} to {self._said} are possible")
        return number


def close_way(sock: socket.socket, *, last: bool) -> None:
    """Close a way; if it is not the last one, so that the other side does not take it for the end of the process."""
    if not last:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def broken(error: OSError) -> str:
    """Return why a connection is given up whose ends still live; "" if a process or a network may have ended."""
    if not isinstance(error, ConnectionAbortedError):
        return ""
    return f"its connection to the store broke: {error.strerror or error}"
