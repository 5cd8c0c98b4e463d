"""Joining the job."""

from __future__ import annotations

import ddl
from ddl_jax._primitive import communicator

__all__ = ["init"]


def init() -> None:
    """Join the job, as ``ddl.init`` does, and prepare the all-reduce for compiled functions.

    Collective, blocking. Calling it again does nothing. The first time with a version of jaxlib it compiles an
    operator, some seconds; without a compiler it says so, and all-reduces are slower. Raises what ``ddl.init`` raises.

    >>> ddl_jax.init()
    """
    ddl.init()
    communicator()
