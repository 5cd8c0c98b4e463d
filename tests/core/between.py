"""Somebody who sits between two ranks of a test, in the process of the one that makes the connection.

He sees all, from the first byte of the proof on.
"""

from __future__ import annotations

import socket
import threading
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from carrying import carry

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

    def _connect_through(
        self, places: List[Tuple[str, int]], secret: bytes, hello: Dict[str, Any], *args: Any, **kwargs: Any
    ) -> socket.socket:
        if self._rail is not None and self._rail != hello["stream"] // _core.STREAMS:
            return self._connect(places, secret, hello, *args, **kwargs)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=self._carry, args=(listener, *places), daemon=True).start()
            deadline, congestion = args[:2]  # no address to connect from: it is this host's
            return self._connect([listener.getsockname()], secret, hello, deadline, congestion, **kwargs)

    def _carry(self, listener: socket.socket, address: Tuple[str, int]) -> None:
        with listener.accept()[0] as here, socket.create_connection(address) as there:
            carry(here, there, self._pass_on)

    def _pass_on(self, data: bytes) -> bytes:
        self.seen += data
        return self._change(data)
