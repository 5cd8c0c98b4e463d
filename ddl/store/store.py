"""A connection to the store for a process that only asks (asking.py). The server is server.py."""

from __future__ import annotations

from ddl.net.auth import recv_frame, send_frame
from ddl.store.asking import AskingClient
from ddl.store.messages import Message

__all__ = ["StoreClient"]


class StoreClient(AskingClient):
    """What asks over one connection. Nobody misses it when it is closed: it says nothing of whether its rank lives."""

    def __init__(self, address: str, secret: bytes, rank: int, timeout: float, *, encrypt: bool = False) -> None:
        super().__init__("store", address, secret, rank, timeout, encrypt)

    def _say(self, request: Message, deadline: float) -> None:
        send_frame(self._sock, request, deadline)

    def _next_answer(self, deadline: float) -> Message:
        return recv_frame(self._sock, deadline)
