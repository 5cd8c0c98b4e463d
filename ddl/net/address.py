"""``host:port`` text and back, listening there, and whether anybody is still at the other end."""

from __future__ import annotations

import math
import socket
import struct
from typing import List, Tuple

from ddl.errors import ResourceError

__all__ = [
    "EVERYWHERE",
    "HOST_TIMEOUT",
    "apart_after",
    "bound",
    "family_of",
    "fell_silent",
    "format_address",
    "is_loopback",
    "listen",
    "notice_silence",
    "parse_address",
    "resolve",
    "silent_for",
    "socket_towards",
]

EVERYWHERE = "::"  #: where ``listen`` takes connections of IPv4 and of IPv6 on all interfaces

HOST_TIMEOUT = 7.0  #: seconds that another host may be silent, where nobody says otherwise (DDL_HOST_TIMEOUT)
_IDLE = 2  # seconds without data, after which the other host is asked whether it is there
_QUESTIONS = 100  # at most, in all the time that it may be silent; the kernel takes up to 127
_IPV6_ADDR_PREFERENCES, _PREFER_PUBLIC = 72, 0x2  # linux/in6.h; the socket module lacks them
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


def family_of(address: str) -> socket.AddressFamily:
    """Return the family of an address in digits: AF_INET6 or AF_INET."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_loopback(address: str) -> bool:
    """Return whether an address in digits is one by which a host reaches itself alone."""
    return address.startswith("127.") or address == "::1"


def resolve(host: str) -> List[str]:
    """Return the addresses of a host by its name, or itself if it is one; those of IPv4 first. Raises OSError.

    IPv4 first: many hosts have IPv6 besides, which nobody has set up. ``AI_ADDRCONFIG`` is not asked for, as it takes a
    host for one without IPv6 or IPv4 that has it on loopback only.
    """
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    return sorted(dict.fromkeys(addresses), key=family_of)


def socket_towards(address: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that can connect to an address in digits.

    It comes from the host's lasting address, not from a temporary one, as IPv6 may have them: those go in days.
    """
    sock = socket.socket(family_of(address), kind)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_ADDR_PREFERENCES, _PREFER_PUBLIC)
    return sock


def notice_silence(sock: socket.socket, seconds: float) -> None:
    """Let a TCP connection break when the other side's *host* has not answered for so many seconds (4 or more).

    A process that is stopped, or slow, is answered for by its kernel. Data under way needs a timeout of its own, as
    keepalive rests meanwhile.
    """
    pause = math.ceil((seconds - _IDLE) / _QUESTIONS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, math.ceil((seconds - _IDLE) / pause))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def silent_for(sock: socket.socket) -> float:
    """Return for how many seconds nothing has come from the other side's host, also of a connection that has broken.

    That is since two seconds before the host fell silent at the earliest. 0 where ``notice_silence`` was not asked for:
    a host that has nothing to say says nothing there, and a reset of an idle connection would look like silence.
    """
    try:
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return 0.0
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK.size)
        return float(_LAST_ACK.unpack(info)[0]) / 1000
    except (OSError, struct.error):  # closed, or no TCP
        return 0.0


def fell_silent(seconds: float, host_timeout: float, host: str) -> str:
    """Return how ``host`` was lost, from which nothing had come for so many seconds; "" if that does not explain it.

    A host that is idle says something every two seconds.
    """
    if seconds < host_timeout - 0.5:
        return ""
    return f"nothing has come from {host} for {seconds:.0f} s: it is down, or the network to it"


def apart_after(host_timeout: float) -> float:
    """Return after how many seconds two hosts count as apart that do not hear each other.

    A host that is gone for all is to be missed by the store before.
    """
    return host_timeout + 3


def listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking listener on ``host``; port 0 takes any free one. ResourceError if it cannot be had."""
    listener = bound(host, port)
    try:
        listener.listen(4096)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(error, host, port) from error
    return listener


def bound(host: str, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket that has a port of ``host`` and does not listen; else like ``listen``."""
    if host == EVERYWHERE and not _knows_ipv6():
        host = "0.0.0.0"
    sock = socket.socket(family_of(host), kind)
    try:
        if host == EVERYWHERE:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _refused(error, host, port) from error
    return sock


def _refused(error: OSError, host: str, port: int) -> ResourceError:
    return ResourceError(error.errno, f"cannot listen on {format_address(host, port)}: {error.strerror}")


def _knows_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_STREAM).close()
        return True
    except OSError:  # a kernel without it
        return False
