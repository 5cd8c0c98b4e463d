"""Somebody who sits between two ranks of a test, in the process of the one that makes the connection."""

from __future__ import annotations

import select
import socket
import threading
from types import ModuleType
from typing import Any, Callable, Optional

from ddl import _core

__all__ = ["Between"]


class Between:
    """Sees what passes on connections that ``module`` makes, and may change it; ``rail``: on those of this one only."""

    def __init__(
        self, module: ModuleType, change: Callable[[bytes], bytes] = bytes, rail: Optional[int] = None
    ) -> None:
        self._module: Any = module
        self._change = change
        self._rail = rail
        self.seen = bytearray()

    def __enter__(self) -> Between:
        self._connect = self._module.connect_data
        self._module.connect_data = self._connect_through
        return self

    def __exit__(self, *_: object) -> None:
        self._module.connect_data = self._connect

    def _connect_through(self, *args: Any) -> socket.socket:
        there = self._connect(*args)  # the proof, and what the connection is for
        if self._rail is not None and self._rail != args[2]["stream"] // _core.STREAMS:
            return there
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            here = listener.accept()[0]
        threading.Thread(target=self._carry, args=(here, there), daemon=True).start()
        return near

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with here, there:
            ways = {here: there, there: here}
            while True:
                for source in select.select(list(ways), [], [])[0]:
                    try:
                        data = source.recv(1 << 16)
                        self.seen += data
                        ways[source].sendall(self._change(data))
                    except OSError:
                        data = b""
                    if not data:
                        return
