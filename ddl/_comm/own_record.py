"""What this process has recorded of itself, as other processes would read it (ddl/records)."""

from __future__ import annotations

import os
from typing import Dict

from ddl import _core
from ddl.records.layout import MOST, ProcessRecord, read_process

__all__ = ["own_record", "waited_seconds"]


def own_record(*, last: int = MOST) -> ProcessRecord:
    """Return this process's record, with the ``last`` operations of each communicator."""
    return read_process(lambda offset, size: os.pread(_core.arena_fd(), size, offset), last=last)


def waited_seconds() -> Dict[int, float]:
    """Return how long nothing moved in the collectives of each communicator of this process, by its number."""
    return {
        record.number: sum(record.lanes[lane].waited for lane in ("small", "large"))
        for record in own_record(last=0).communicators
    }
