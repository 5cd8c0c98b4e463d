"""The ways in which the ranks of a test's job can be connected, as keyword arguments of ``ranks.run``.

One machine plays several hosts: ranks with different DDL_HOST_ID do not share memory and meet over TCP.
"""

from __future__ import annotations

from typing import Any, Dict

TRANSPORTS = ["shared", "tcp", "hybrid", "rails"]


def two_per_host(rank: int) -> Dict[str, str]:
    return {"DDL_HOST_ID": f"host{rank // 2}"}


def uneven_hosts(rank: int) -> Dict[str, str]:
    """Rank 0 alone, the others together."""
    return {"DDL_HOST_ID": f"host{min(rank, 1)}"}


def interleaved_hosts(rank: int) -> Dict[str, str]:
    """Ranks dealt to two hosts in turn."""
    return {"DDL_HOST_ID": f"host{rank % 2}"}


def connected(transport: str, **env: str) -> Dict[str, Any]:
    """Return what ``ranks.run`` needs for ``transport``; ``env`` adds variables."""
    more: Dict[str, Dict[str, Any]] = {
        "shared": {"env": env},
        "tcp": {"env": {"DDL_SHM": "0", **env}},
        "rails": {"env": {"DDL_SHM": "0", "DDL_INTERFACE": "127.0.0.1,127.0.0.2,127.0.0.3", **env}},
        "hybrid": {"env": env, "env_of": two_per_host},
        "uneven": {"env": env, "env_of": uneven_hosts},
        "interleaved": {"env": env, "env_of": interleaved_hosts},
    }
    return more[transport]
