"""The address on which an option lets a tool listen. It loads no code of that tool."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from ddl.errors import ConfigError, ResourceError
from ddl.net.address import EVERYWHERE, format_address, listen, parse_address

__all__ = ["ListeningAddress"]

_HERE = "127.0.0.1"


class ListeningAddress(NamedTuple):
    """An address of this host, and a port; 0: any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, option: str, text: str, *, any_port: bool = False) -> ListeningAddress:
        """Return what ``[ADDR:]PORT`` means; without ADDR this host alone may connect. ConfigError names ``option``.

        ``any_port``: ``ADDR`` without a port is good, too, and ``:PORT``.
        """
        whole = text
        if any_port and text.startswith(":"):
            whole = text[1:]
        elif any_port and text and (":" not in text or text.endswith("]")) and not text.isdigit():
            whole = f"{text}:0"
        name, _, port = whole.rpartition(":")
        free = port.strip("0") == "" and port != ""
        try:
            if any(character.isspace() for character in text):
                raise ValueError(f"{text!r} has spaces")
            host, number = parse_address(f"{name if ':' in whole else _HERE}:{1 if free else port}")
        except ValueError as error:
            alone = ", or an address alone" if any_port else ""
            raise ConfigError(
                f"{option} {text}: it must be a port, or an address and a port, as 9400 or 0.0.0.0:9400{alone}"
            ) from error
        return cls(host, 0 if free else number)

    def __str__(self) -> str:
        return format_address(self.host, self.port)

    @property
    def everywhere(self) -> bool:
        """Whether it stands for all addresses of this host."""
        return self.host in (EVERYWHERE, "0.0.0.0")

    @property
    def loopback(self) -> bool:
        """Whether only programs on this host reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self, option: str) -> socket.socket:
        """Return a socket that listens there; ConfigError, which names ``option``, if it cannot be had."""
        try:
            return listen(self.host, self.port)
        except ResourceError as error:
            raise ConfigError(
                f"{option}: {error}; choose an address of this host and a free port, or port 0 for any free one"
            ) from error
