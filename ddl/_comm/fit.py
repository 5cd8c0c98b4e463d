"""Whether ranks can work with one another: what all must have alike. Each says it as it introduces itself."""

from __future__ import annotations

from typing import Callable, Sequence

from ddl._comm.peer import Peer
from ddl.errors import ConfigError
from ddl.net.rails import family_problem
from ddl.text.rank_names import listed

__all__ = ["SHOWN", "check_fit"]

SHOWN = 4  #: ranks that an error lists
#: By the setting, a switch: what those say who have it, and what to do.
_ALIKE = {
    "deterministic": ("asked for deterministic sums", "pass the same deterministic= to init"),
    "encrypt": ("encrypted connections", "start all by ddlrun --encrypt"),
    "checksum": ("asked for checksums", "start all by ddlrun --checksum"),
}


def check_fit(rank: int, peers: Sequence[Peer], label: Callable[[int], str]) -> None:
    """Raise ``ConfigError`` unless all can work with one another; the same on all ranks, but for ``rank``'s own number.

    ``label``: how people know a process.
    """
    labels = [label(peer.rank) for peer in peers]
    versions = sorted({peer.version for peer in peers})
    if len(versions) > 1:
        raise ConfigError(
            f"the ranks run different versions of DDL ({', '.join(versions)}): "
            + ", ".join(f"{name}: {peer.version}" for name, peer in zip(labels, peers))
            + "; install the same one everywhere"
        )
    problem = family_problem(labels, [[offer.address for offer in peer.offers] for peer in peers])
    if problem:
        raise ConfigError(f"rank {rank}: {problem}")
    for setting, (what, remedy) in _ALIKE.items():
        asking = [name for name, peer in zip(labels, peers) if getattr(peer, setting)]
        refusing = [name for name, peer in zip(labels, peers) if not getattr(peer, setting)]
        if asking and refusing:
            raise ConfigError(
                f"rank {rank}: {listed(asking, SHOWN)} {what}, {listed(refusing, SHOWN)} did not; {remedy}, or set the "
                f"same DDL_{setting.upper()}, on every rank"
            )
