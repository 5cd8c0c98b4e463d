"""What can be built: hosts, racks, rails and how fast they are. Plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

__all__ = ["FOUR_HOSTS", "TWO_HOSTS", "TWO_PAIRS", "TWO_RACKS", "TWO_RAILS", "Shape", "burst_bytes", "parse_rate"]


@dataclass(frozen=True)
class Shape:
    """What to build. Rates are in bits per second, for each direction; None: as fast as it goes."""

    hosts: int
    racks: int = 1  #: hosts are dealt to them in blocks; each has a bridge per rail
    slots: int = 1  #: ranks meant for each host
    rails: Tuple[Optional[int], ...] = (None,)  #: the rates of a host's interfaces rail0, rail1, …
    uplink: Optional[int] = None  #: the rate between a rack and all others, on each rail
    ip: str = "4"  #: the addresses that hosts have: "4" (IPv4), "6" (IPv6) or "both"

    def __post_init__(self) -> None:
        rates = [rate for rate in (*self.rails, self.uplink) if rate is not None]
        if not (1 <= self.racks <= self.hosts <= 99 and self.slots >= 1 and self.rails and all(r > 0 for r in rates)):
            raise ValueError(f"{self} should have 1 to 99 hosts, 1 to that many racks, slots, rails, positive rates")
        if self.ip not in ("4", "6", "both"):
            raise ValueError(f"{self}: ip is 4, 6 or both")

    def rack(self, host: int) -> int:
        """Return the rack of host 0, 1, …"""
        return host * self.racks // self.hosts


def burst_bytes(rate: int) -> int:
    """Return the size of the token bucket, in bytes, for ``rate`` bits per second: 1 ms. It keeps TCP near the rate."""
    return max(64 << 10, rate // 8000)


def parse_rate(text: str) -> Optional[int]:
    """Return the bits per second of ``250mbit`` or ``2.5gbit``, None for ``max``; ValueError otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text)
    if text != "max" and match is None:
        raise ValueError(f"{text!r} is no rate such as 250mbit, 2.5gbit or max")
    return int(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match[2]]) if match else None


TWO_HOSTS = Shape(2)
FOUR_HOSTS = Shape(4, slots=2)
TWO_PAIRS = Shape(4, racks=2, slots=2)
TWO_RACKS = Shape(4, racks=2, slots=2, rails=(10**9,), uplink=10**9 // 4)
TWO_RAILS = Shape(2, rails=(10**9, 10**9 // 4))
