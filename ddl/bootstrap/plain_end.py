"""Lets code that knows only plain sockets use an encrypted connection: a thread carries between the two (csrc/tls)."""

from __future__ import annotations

import logging
import socket
import threading

from ddl import _core
from ddl.net.encryption import EncryptedSocket
from ddl.net.shortage import threads_for

__all__ = ["plain_end"]

log = logging.getLogger("ddl")


def plain_end(sock: socket.socket) -> socket.socket:
    """Return ``sock``, or, if it is encrypted, a plain one: what goes through that goes encrypted over ``sock``.

    Then ``sock`` is taken over, and closed when the returned one is. ``ResourceError`` if no thread can be started.
    """
    if not isinstance(sock, EncryptedSocket):
        return sock
    session = sock.session
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
