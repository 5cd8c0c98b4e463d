"""Encrypts connections whose ends have proved the job's secret (auth.py): TLS 1.3, with a key from it (csrc/tls).

There are no certificates. The key is made from the job's secret and from all that both ends said in their proof, so no
two connections have the same. The native core is loaded when a process first encrypts, as ddlrun does without it.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
from typing import TYPE_CHECKING, Any

from ddl.errors import PeerLost, ResourceError

if TYPE_CHECKING:
    from ddl import _core

__all__ = ["EncryptedSocket", "begin", "can_encrypt", "prepare_encryption"]

log = logging.getLogger("ddl")

_RECORD = 16 << 10  # bytes that go or come at once


def prepare_encryption(encrypt: bool, openssl: str) -> None:
    """Load what encrypts, before the first connection, if anything is to be encrypted.

    ``openssl``: the path of a libssl; empty: the one that Python uses. ``ResourceError`` says what is missing.
    """
    if encrypt:
        _native().load_openssl(openssl)


def can_encrypt(openssl: str) -> bool:
    """Return whether this process can encrypt; ``openssl`` as for ``prepare_encryption``. The log says what is missing.

    For what is encrypted wherever both ends can.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            prepare_encryption(True, openssl)
            begin(ours, True, bytes(32), read_ahead=False)  # it may be an OpenSSL without what we need
        except ResourceError as error:
            log.info("nothing is encrypted: %s", error)
            return False
    return True


def begin(sock: socket.socket, server: bool, key: bytes, *, read_ahead: bool) -> _core.TlsSession:
    """Return a session on ``sock`` that has not shaken hands; ``server``: this end has accepted the connection.

    ``read_ahead``: faster for much data. But then ``sock`` may not be readable although the session has more to read:
    only for those who try to read before they wait.
    """
    session: _core.TlsSession = _native().TlsSession(sock.fileno(), server, key, read_ahead)
    return session


def _native() -> Any:
    try:
        from ddl import _core  # not at import: most jobs do not encrypt
    except ImportError as error:
        raise ResourceError(errno.ENOENT, f"encryption needs DDL's native core: {error}") from error
    return _core


class EncryptedSocket(socket.socket):
    """A connected socket whose ``send`` and ``recv`` go through a session; all else is that of the socket itself.

    One thread may receive while another one sends. It takes the socket over.
    """

    def __init__(self, sock: socket.socket, session: _core.TlsSession) -> None:
        timeout = sock.gettimeout()
        super().__init__(fileno=sock.detach())
        self.settimeout(timeout)
        self.session = session
        self._lock = threading.Lock()  # a session is for one thread at a time; never held while waiting
        self._begun = 0  # bytes that the caller was not told of: their record waits for the kernel

    def send(self, data: Any, flags: int = 0) -> int:
        """Send what goes, of a record at most; return how many bytes that were.

        As of a plain socket, with one duty: who could not send must come again with the same bytes, or close.
        """
        while True:
            with self._lock:
                try:
                    if not self._begun:
                        self._begun = self.session.write(bytes(data[:_RECORD]))
                    elif self.session.unsent:
                        self.session.write(b"")
                except PeerLost as error:
                    raise self._ended(error) from error
                if not self.session.unsent:
                    sent, self._begun = self._begun, 0
                    return sent
            self._wait(select.POLLOUT, flags)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Return what has come, ``bufsize`` bytes and a record at most; b"" if the other end has closed."""
        while True:
            with self._lock:
                try:
                    data = self.session.read(min(bufsize, _RECORD))
                except PeerLost as error:
                    if self.session.closed:
                        return b""
                    raise self._ended(error) from error
            if data:
                return data
            self._wait(select.POLLIN, flags)

    def _ended(self, error: PeerLost) -> OSError:
        """Return what a socket would raise; ``ConnectionAbortedError`` if it is not the network that has ended it."""
        return OSError(self.session.error or (errno.EPIPE if self.session.closed else errno.ECONNABORTED), str(error))

    def _wait(self, event: int, flags: int) -> None:
        timeout = self.gettimeout()
        if flags & socket.MSG_DONTWAIT or timeout == 0:
            raise BlockingIOError(errno.EAGAIN, "an encrypted socket would have to wait")
        poller = select.poll()
        poller.register(self.fileno(), event)
        if not poller.poll(None if timeout is None else max(1, int(1000 * timeout))):
            raise socket.timeout("timed out")

    def _would_be_plain(self, *_: object, **__: object) -> Any:
        raise NotImplementedError("this would pass by the encryption; an EncryptedSocket has send and recv only")

    dup = sendall = sendto = sendmsg = sendfile = _would_be_plain
    recv_into = recvfrom = recvfrom_into = recvmsg = recvmsg_into = _would_be_plain
