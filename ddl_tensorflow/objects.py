"""``broadcast_object``, ``allgather_object``: Python objects between ranks, as named operations; also within a session.

They are functions of Python: in a ``tf.function`` they run when it is traced.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional

from ddl.adapter import operations
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl_tensorflow._where import Where, global_process_set

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn"]


@naming_rank
def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Return the ``obj`` of ``root_rank`` on every rank. Collective, blocking.

    What is not plain data (see ``ddl.Communicator.broadcast_object``) needs ``allow_pickle=True`` on every rank, which
    trusts all ranks to run code on all ranks; Horovod pickles without asking. ``session`` is Horovod's, and not used.
    Raises ``InvalidArgument``, on all ranks, if the root's object cannot be sent, and on ranks that do not accept its
    pickle; nothing is broken then. ``CollectiveMismatch``, ``CollectiveTimeout``: as ``allreduce``.

    >>> state = ddl_tensorflow.broadcast_object({"epoch": epoch})
    """
    where = Where(process_set)
    return where.run(operations.broadcast_object(obj, where.index(root_rank), str(root_rank), allow_pickle), name)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
) -> Callable[[Any], Any]:
    """Return a function of an object that is ``broadcast_object`` with these arguments."""

    def broadcast(obj: Any = None) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set, allow_pickle=allow_pickle)

    return broadcast


@naming_rank
def allgather_object(
    obj: Any,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
) -> List[Any]:
    """Return the list of all ranks' ``obj``, in rank order. Collective, blocking.

    Objects, ``session`` and errors are those of ``broadcast_object``; one that cannot be sent is an error on all ranks.
    """
    return Where(process_set).run(operations.allgather_object(obj, allow_pickle), name)
