"""Horovod's questions to what a verb with ``_async`` has returned, which is a ``Work`` here."""

from __future__ import annotations

from typing import Any, TypeVar

import ddl
from ddl.adapter.rank_prefix import naming_rank
from ddl_torch._tensors import Work

__all__ = ["poll", "synchronize"]

T = TypeVar("T")


@naming_rank
def poll(handle: Work[Any]) -> bool:
    """Return whether what a verb with ``_async`` began has ended, well or not. Does not block.

    Raises ``InvalidArgument`` for anything else, such as the int that is a handle in Horovod.
    """
    return _work(handle).done()


@naming_rank
def synchronize(handle: Work[T]) -> T:
    """Wait until what a verb with ``_async`` began has ended, and return its result.

    Raises what ``Work.wait`` does, and ``InvalidArgument`` for anything else, such as the int that is a handle in
    Horovod.
    """
    return _work(handle).wait()


def _work(handle: Work[T]) -> Work[T]:
    if not isinstance(handle, Work):
        raise ddl.InvalidArgument(f"{handle!r} is no handle; pass what a verb with _async has returned")
    return handle
