"""Whether the other side of a connection hangs up."""

from __future__ import annotations

import socket


def hang_up_within(sock: socket.socket, seconds: float) -> bool:
    """Return whether the other side closes the connection in time, whatever it sends before."""
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
    except socket.timeout:
        return False
    except ConnectionError:
        pass
    return True
