"""Which ranks a call is about: a script may give a process set or a communicator."""

from __future__ import annotations

from typing import Optional

import ddl
from ddl.adapter.process_sets import ProcessSet
from ddl_torch._where import global_process_set

__all__ = ["communicator_of"]


def communicator_of(
    process_set: Optional[ProcessSet], communicator: Optional[ddl.Communicator] = None
) -> Optional[ddl.Communicator]:
    """Return the communicator of ``process_set``, which is None on ranks outside of it; or ``communicator``.

    Without either, that of all ranks. Raises ``InvalidArgument`` if both are given.
    """
    if process_set is None or process_set is global_process_set:
        return ddl.world() if communicator is None else communicator
    if communicator is not None:
        raise ddl.InvalidArgument("process_set and communicator were both given, and say the same thing: give one")
    return process_set.communicator
