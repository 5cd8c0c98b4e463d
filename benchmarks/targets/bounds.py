"""What a wire allows at best, by arithmetic alone."""

from __future__ import annotations

__all__ = ["ETHERNET", "TOKEN_BUCKETS", "ring_seconds"]

#: Bytes of a full TCP segment on the wire over those of its payload, 1448 with time stamps. The token buckets of our
#: clusters count the frame with its headers; a real wire also takes the time of preamble, check sum and gap.
TOKEN_BUCKETS = 1514 / 1448
ETHERNET = 1538 / 1448


def ring_seconds(nbytes: int, members: int, bits_per_s: float) -> float:
    """Return the least time of an all-reduce of ``nbytes`` by ``members`` (hosts, racks) with one such wire each.

    Each must send and receive 2(m-1)/m of the buffer, whatever the algorithm; headers are not counted.
    """
    return 2 * (members - 1) / members * nbytes * 8 / bits_per_s
