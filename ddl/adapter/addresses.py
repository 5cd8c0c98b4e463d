"""``own_address``: for engines that make connections of their own, and want to be told where they find one another."""

from __future__ import annotations

from ddl import api

__all__ = ["own_address"]


def own_address() -> str:
    """Return the address at which this process takes data from the other ranks of its job: the first of its rails.

    Of a job of one rank: loopback. Raises ``InvalidState`` before ``init``. Not collective.
    """
    job = api.world().job
    return job.address(job.number, 0)[0] if job.number in job.peers else "127.0.0.1"
