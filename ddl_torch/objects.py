"""``broadcast_object``, ``allgather_object``: Python objects between ranks, as named operations."""

from __future__ import annotations

from typing import Any, List, Optional

from ddl import Communicator
from ddl.adapter import operations
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl_torch._process_set import Where, global_process_set

__all__ = ["allgather_object", "broadcast_object"]


@naming_rank
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
    communicator: Optional[Communicator] = None,
) -> Any:
    """Return the ``obj`` of ``root_rank`` on every rank. Collective, blocking.

    ``name``, ``process_set``, ``communicator``: as for ``allreduce``. What is not plain data (see
    ``ddl.Communicator.broadcast_object``) needs ``allow_pickle=True`` on every rank, which trusts all ranks to run code
    on all ranks; Horovod pickles without asking. Raises ``InvalidArgument``, on all ranks, if the root's object cannot
    be sent, and on ranks that do not accept its pickle; nothing is broken then. ``CollectiveMismatch``,
    ``CollectiveTimeout``: as ``allreduce``.

    >>> state = ddl_torch.broadcast_object({"epoch": epoch})
    """
    where = Where(process_set, communicator)
    return where.run(operations.broadcast_object(obj, where.index(root_rank), str(root_rank), allow_pickle), name)


@naming_rank
def allgather_object(
    obj: Any,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
    communicator: Optional[Communicator] = None,
) -> List[Any]:
    """Return the list of all ranks' ``obj``, in rank order. Collective, blocking.

    Objects and errors are those of ``broadcast_object``; one that cannot be sent is an error on all ranks.
    """
    return Where(process_set, communicator).run(operations.allgather_object(obj, allow_pickle), name)
