"""``join``: what a rank calls that has no more data while others go on."""

from __future__ import annotations

from ddl_torch._where import global_process_set, process_sets

__all__ = ["join"]


def join(device: int = -1) -> int:
    """Say that this rank has no more data; supply zeros to the all-reduces of the others until all have said so.

    Blocks; every rank calls it. Returns the rank that did so last. ``device`` is Horovod's, and not used. Averages
    still divide by the number of all ranks. All-gather, broadcast, all-to-all and reduce-scatter are an error on the
    other ranks meanwhile.
    """
    process_sets.open()
    return global_process_set.negotiator.join()
