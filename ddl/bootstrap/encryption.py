"""Encrypts data connections: TLS 1.3, with a key from the job's secret instead of certificates (csrc/tls).

First both ends prove that they know the secret, and one says what the connection is for (peer_handshake.py). What it
says is part of the key: if somebody on the way has changed it, the two ends do not agree on a key, and none is used.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
from typing import Any, Dict

from ddl import _core, clock
from ddl.net.shortage import threads_for

__all__ = ["accept_encrypted", "connect_encrypted", "plain_end"]

log = logging.getLogger("ddl")

_PURPOSE = b"ddl-1 key of a data connection\0"  # the secret's other uses have other texts


def connect_encrypted(sock: socket.socket, secret: bytes, hello: Dict[str, Any], deadline: float) -> _core.TlsSession:
    """Encrypt a connection that this end has made; ``hello``: what it has said of it.

    ``ProtocolError`` if the other end does not agree by ``deadline`` (monotonic seconds).
    """
    return _session(sock, False, secret, hello, deadline)


def accept_encrypted(sock: socket.socket, secret: bytes, hello: Dict[str, Any], deadline: float) -> _core.TlsSession:
    """Encrypt a connection that this end has accepted, as above; ``hello``: what the other end has said of it."""
    return _session(sock, True, secret, hello, deadline)


def plain_end(sock: socket.socket, session: _core.TlsSession) -> socket.socket:
    """Return a socket for code that knows only sockets: what goes through it goes encrypted over ``sock``.

    That is taken over, and closed when the returned one is. ``ResourceError`` if no thread can be started.
    """
    near, far = socket.socketpair()
    encrypted = socket.socket(fileno=sock.detach())

    def carry() -> None:
        with encrypted, far:
            why = _core.relay(session, encrypted.fileno(), far.fileno())
        if why:
            log.info("a connection for the state of the job has ended: %s", why)

    try:
        with threads_for("the state of the job cannot be encrypted"):
            threading.Thread(target=carry, name="ddl-encrypt", daemon=True).start()
    except BaseException:
        for each in (near, far, encrypted):
            each.close()
        raise
    return near


def _session(
    sock: socket.socket, server: bool, secret: bytes, hello: Dict[str, Any], deadline: float
) -> _core.TlsSession:
    said = json.dumps(hello, sort_keys=True, separators=(",", ":")).encode()
    key = hmac.digest(secret, _PURPOSE + said, "sha256")
    return _core.TlsSession(sock.fileno(), server, key, max(0.1, deadline - clock.now()))
