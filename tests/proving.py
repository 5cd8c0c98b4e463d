"""The server's half of the proof on a blocking socket, for tests; in DDL a ``Door`` does it (ddl/net/newcomers.py)."""

from __future__ import annotations

import socket

from ddl.net import auth
from ddl.net.encryption import EncryptedSocket, begin

__all__ = ["prove_as_server"]


def prove_as_server(
    sock: socket.socket, secret: bytes, deadline: float, *, encrypt: bool = False, read_ahead: bool = False
) -> socket.socket:
    """Return the socket to use, as ``prove_as_client`` does at the other end."""
    peer = auth.name_of(sock)
    proof = auth.ServerProof(secret, peer, encrypt)
    while not proof.done:
        said = auth._handshake_read(sock, proof.wanted, deadline, peer)
        auth._handshake_write(sock, proof.feed(said), deadline, peer)
    if not proof.key:
        return sock
    session = begin(sock, True, proof.key, read_ahead=read_ahead)
    while not session.shake_hands():
        auth._await(sock, auth.select.POLLIN, deadline)
    return EncryptedSocket(sock, session)
