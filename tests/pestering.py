"""Strangers that come to a port again and again, as fast as they are sent away."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Iterator, List, Tuple


@contextlib.contextmanager
def pestering(address: Tuple[str, int], strangers: int = 4) -> Iterator[List[int]]:
    """As long as this lasts, strangers talk HTTP to ``address``. Yields how often they were sent away, in a list."""
    sent_away, stop = [0], threading.Event()

    def pester() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=10) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: everything\r\n\r\n")
                stranger.recv(1)
            sent_away[0] += 1

    threads = [threading.Thread(target=pester) for _ in range(strangers)]
    for thread in threads:
        thread.start()
    try:
        yield sent_away
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
