"""``host:port`` text and back, listening there, and whether anybody is still at the other end of a connection."""

from __future__ import annotations

import socket
import struct
from typing import Tuple

from ddl.errors import ResourceError

__all__ = ["format_address", "listen", "notice_silence", "parse_address", "silent_for"]

_SILENCE = 7  # seconds
_LAST_ACK = struct.Struct("=56xI")  # of linux/tcp.h's tcp_info: milliseconds since the last acknowledgement came


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> Tuple[str, int]:
    """Return (host, port); ValueError if ``text`` is not ``host:port`` with a port of 1 to 65535."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r} is not host:port; an IPv6 address stands in brackets")
    if not host:
        raise ValueError(f"{text!r} has no host")
    return host, int(port)


def notice_silence(sock: socket.socket) -> None:
    """Let a TCP connection break when the other side's *host* has not answered for 7 seconds.

    A process that is stopped, or slow, is answered for by its kernel. Data under way needs a timeout of its own, as
    keepalive rests meanwhile.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENCE - 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE * 1000)


def silent_for(sock: socket.socket) -> float:
    """Return for how many seconds nothing has come from the other side's host, also of a connection that has broken.

    Where ``notice_silence`` was asked for, that is since two seconds before the host fell silent at the earliest.
    """
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK.size)
        return float(_LAST_ACK.unpack(info)[0]) / 1000
    except (OSError, struct.error):  # closed, or no TCP
        return 0.0


def listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking listener on ``host``; port 0 takes any free one. ResourceError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(4096)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        where = format_address(host, port)
        raise ResourceError(error.errno, f"cannot listen on {where}: {error.strerror}") from error
    return listener
