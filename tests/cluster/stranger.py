"""Visits every given port as a stranger does: python stranger.py HOST:PORT …; prints how many visits it made."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import sys
from typing import Callable, Dict


def scan(sock: socket.socket) -> None:
    """Connect, and no more."""


def noise(sock: socket.socket) -> None:
    sock.sendall(os.urandom(4096))


def browser(sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


def huge_header(sock: socket.socket) -> None:
    """A length that would be a megabyte to a reader of frames, and a megabyte."""
    sock.sendall(struct.pack("!I", 1_000_000) + bytes(1_000_000))


def wrong_secret(sock: socket.socket) -> None:
    """The handshake of ddl/net/auth.py to the letter, but with another secret."""
    header = struct.pack("!4sBBxx", b"DDLa", 2, 1)
    sock.sendall(header + bytes(32))
    challenge = b""
    while len(challenge) < 72:
        piece = sock.recv(72 - len(challenge))
        if not piece:
            return
        challenge += piece
    text = bytes([1]) + header + bytes(32) + challenge[:40]
    sock.sendall(hmac.new(b"not the secret!!", text, hashlib.sha256).digest())
    sock.recv(1)


VISITS: Dict[str, Callable[[socket.socket], None]] = {
    name: globals()[name] for name in ("scan", "noise", "browser", "huge_header", "wrong_secret")
}


def main() -> None:
    count = 0
    for target in sys.argv[1:]:
        host, _, port = target.rpartition(":")
        for visit in VISITS.values():
            with socket.create_connection((host, int(port)), timeout=5) as sock:
                count += 1
                try:
                    visit(sock)
                except OSError:
                    continue  # thrown out, as it should be
    print(count)


if __name__ == "__main__":
    main()
