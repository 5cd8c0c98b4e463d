"""Connections that have not yet proved the job's secret: they may use only little of a process.

A ``Door`` is a listener with the connections that have come and have proved nothing yet. The selector loop of its owner
serves them, without a thread. There are ``PLACES`` places for them. Each is taken for at least ``_LEAST`` seconds, even
if the connection was closed at once. So any number of strangers can cause only a few hundred handshakes per second. A
connection that proves the secret frees its place and is accepted. When all places are taken, the oldest stranger is cut
off. Until it is old enough for that, others wait in the kernel's queue.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
from typing import TYPE_CHECKING, Callable, Dict, List, Optional

from ddl import clock
from ddl.errors import Error, ProtocolError, ResourceError
from ddl.net import encryption
from ddl.net.auth import AuthError, ServerProof, name_of
from ddl.net.shortage import PAUSE, Shortage

if TYPE_CHECKING:
    from ddl import _core

__all__ = ["LONGEST", "PLACES", "Complaints", "Door", "in_a_thread"]

log = logging.getLogger("ddl")

PLACES = 128  #: strangers at a time
_LEAST = 0.25  #: seconds that a stranger takes a place
LONGEST = 5.0  #: seconds after which one that has not proved itself is cut off
_QUIET = 10.0  #: seconds between two warnings


class Complaints:
    """Warnings about newcomers, at most one in ten seconds: strangers decide how many there could be. Thread-safe.

    ``who`` is how they begin: whose door it is.
    """

    def __init__(self, who: str, shortage: Shortage) -> None:
        self._who = who
        self._shortage = shortage
        self._lock = threading.Lock()
        self._next: Dict[int, float] = {}  # when one may be made, by level
        self._suppressed: Dict[int, int] = {}

    def about(self, error: BaseException) -> None:
        """Log why a connection was turned away, or count it; a shortage of this process's is told by ``Shortage``."""
        if self._shortage.met(error):
            return
        # One that hung up before it proved itself may be a rank of ours that has just ended.
        level = logging.INFO if isinstance(error, AuthError) and error.closed else logging.WARNING
        with self._lock:
            now = clock.now()
            if now < self._next.get(level, 0.0):
                self._suppressed[level] = self._suppressed.get(level, 0) + 1
                return
            self._next[level] = now + _QUIET
            more = self._suppressed.pop(level, 0)
        text = f" (and {more} more since the last such message)" if more else ""
        log.log(level, "%s: turned a connection away: %s%s", self._who, error, text)


class _Stranger:
    def __init__(self, sock: socket.socket, secret: bytes, encrypt: bool) -> None:
        self.sock: Optional[socket.socket] = sock  #: None: it has been sent away, or is welcome
        self.proof = ServerProof(secret, name_of(sock), encrypt)
        self.session: Optional[_core.TlsSession] = None  #: from when it has proved the secret, if it encrypts
        self.born = clock.now()


class Door:
    """A listener and its strangers. Belongs to the thread of ``selector``, whose data are functions to be called.

    ``welcome`` is called in that thread with a connection that has proved the secret, and takes the socket over, which
    does not block. If it raises ``ResourceError`` the socket is kept, and it is called again a moment later.
    ``greeting``, a few bytes, is what everybody is sent first. ``encrypt``: only those are let in who encrypt.
    ``read_ahead``: what their sockets do then, see ``encryption.begin``.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        selector: selectors.BaseSelector,
        complaints: Complaints,
        welcome: Callable[[socket.socket], None],
        greeting: bytes = b"",
        *,
        encrypt: bool = False,
        read_ahead: bool = False,
    ) -> None:
        listener.setblocking(False)  # a connection that was closed again must not keep the thread in accept
        self._listener = listener
        self._secret = secret
        self._selector = selector
        self._complaints = complaints
        self._welcome = welcome
        self._greeting = greeting
        self._encrypt = encrypt
        self._read_ahead = read_ahead
        self._strangers: Dict[int, _Stranger] = {}  # by number, in the order of arrival
        self._proved: List[socket.socket] = []  # the secret, but there was no thread or memory for them
        self._came = 0
        self._shut_until: Optional[float] = None
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def pause(self, seconds: float) -> None:
        """Leave those who wait at the listener there for a while."""
        if self._shut_until is None:
            self._selector.unregister(self._listener)
        self._shut_until = clock.now() + seconds

    def patience(self) -> float:
        """Return in how many seconds ``tick`` has something to do."""
        deadlines = [clock.now() + 60.0]
        if self._shut_until is not None:
            deadlines.append(self._shut_until)
        if self._strangers:
            oldest = next(iter(self._strangers.values()))
            deadlines.append(oldest.born + (_LEAST if oldest.sock is None else LONGEST))
        return max(0.0, min(deadlines) - clock.now()) + 0.001  # epoll rounds down to whole milliseconds

    def tick(self) -> None:
        """Time has passed: cut off connections that are too slow, and open again."""
        now = clock.now()
        for number, stranger in list(self._strangers.items()):
            if now - stranger.born >= LONGEST and stranger.sock is not None:
                self._send_away(stranger, AuthError(f"{name_of(stranger.sock)} did not prove itself", closed=True))
            if now - stranger.born >= _LEAST and stranger.sock is None:
                del self._strangers[number]
        if self._shut_until is not None and self._shut_until <= now:
            self._shut_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            while self._proved:
                self._let_in(self._proved.pop())

    def close(self) -> None:
        """Close the listener and the connections that have proved nothing. The owner closes the selector."""
        self._listener.close()
        for stranger in self._strangers.values():
            if stranger.sock is not None:
                stranger.sock.close()
        self._strangers.clear()
        while self._proved:
            self._proved.pop().close()

    def _accept(self) -> None:
        if len(self._strangers) >= PLACES:
            number, oldest = next(iter(self._strangers.items()))
            remaining = oldest.born + _LEAST - clock.now()
            if remaining > 0:
                self.pause(remaining)
                return
            if oldest.sock is not None:
                self._send_away(oldest, AuthError("it made room for others", closed=True))
            del self._strangers[number]
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it has hung up again
            return
        except OSError:  # short of descriptors or memory: they may come back; at once would be a busy loop
            self.pause(PAUSE)
            raise
        sock.setblocking(False)
        self._came += 1
        number, stranger = self._came, _Stranger(sock, self._secret, self._encrypt)
        self._strangers[number] = stranger
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._read(number, stranger))
        if self._greeting:
            try:
                sock.send(self._greeting, socket.MSG_NOSIGNAL)  # into an empty buffer: it takes all of it
            except OSError as error:
                self._send_away(stranger, error)

    def _send_away(self, stranger: _Stranger, why: Exception) -> None:
        sock, stranger.sock = stranger.sock, None
        assert sock is not None
        self._selector.unregister(sock)
        sock.close()
        self._complaints.about(why)

    def _read(self, number: int, stranger: _Stranger) -> None:
        sock = stranger.sock
        if sock is None:  # sent away by what was served before it
            return
        try:
            welcome = _prove(sock, stranger.proof) if stranger.session is None else _encrypted(sock, stranger.session)
            if welcome and stranger.session is None and stranger.proof.key:
                stranger.session = encryption.begin(sock, True, stranger.proof.key, read_ahead=self._read_ahead)
                welcome = False
        except BlockingIOError:
            return
        except (OSError, Error) as error:
            self._send_away(stranger, error)
            return
        if welcome:
            del self._strangers[number]
            self._selector.unregister(sock)
            self._let_in(sock if stranger.session is None else encryption.EncryptedSocket(sock, stranger.session))

    def _let_in(self, sock: socket.socket) -> None:
        try:
            self._welcome(sock)
        except ResourceError:
            self._proved.append(sock)  # to the peer it is a connection; to close it would be a failure
            self.pause(PAUSE)
            raise
        except OSError:  # it has gone again
            sock.close()
            raise


def _prove(sock: socket.socket, proof: ServerProof) -> bool:
    """Read what has come of the client's proof; return whether it is one."""
    data = sock.recv(proof.wanted)
    if not data:
        raise AuthError(f"{name_of(sock)} did not finish the handshake: closed by the peer", closed=True)
    answer = proof.feed(data)
    if answer and sock.send(answer, socket.MSG_NOSIGNAL) < len(answer):
        raise AuthError(f"{name_of(sock)} takes no answer", closed=True)
    return proof.done


def _encrypted(sock: socket.socket, session: _core.TlsSession) -> bool:
    """Go on agreeing upon a key; return whether that is done."""
    try:
        done = session.shake_hands()
    except ProtocolError as error:
        reason = f"the connection to {name_of(sock)} cannot be encrypted: {error}"
        raise AuthError(reason, closed=session.closed) from error
    if session.unsent:  # a few hundred bytes, into an empty buffer
        raise AuthError(f"{name_of(sock)} takes no answer", closed=True)
    return done


def in_a_thread(welcome: Callable[[socket.socket], None], complaints: Complaints) -> Callable[[socket.socket], None]:
    """Return what a ``Door`` calls so that each newcomer gets a thread, in which ``welcome`` may block.

    The socket is closed when ``welcome`` returns or raises. Where no thread can be started: ``ResourceError``.
    """

    def start(sock: socket.socket) -> None:
        def meet() -> None:
            with sock:
                try:
                    sock.settimeout(None)
                    welcome(sock)
                except (OSError, Error) as error:
                    complaints.about(error)

        try:
            threading.Thread(target=meet, name="ddl-newcomer", daemon=True).start()
        except RuntimeError as error:
            raise ResourceError(errno.EAGAIN, str(error)) from error

    return start
