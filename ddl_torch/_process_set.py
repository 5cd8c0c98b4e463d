"""On which ranks a verb runs, and how: negotiated on a process set, or in the order of calls on a communicator."""

from __future__ import annotations

from typing import Optional, TypeVar

import ddl
from ddl.adapter import operations
from ddl.adapter.operations import Operation
from ddl.adapter.process_sets import ProcessSet, ProcessSets
from ddl_torch._operations import absent
from ddl_torch._tensors import Work

__all__ = ["Where", "communicator_of", "global_process_set", "process_sets"]

T = TypeVar("T")

process_sets = ProcessSets(absent)
global_process_set = process_sets.everybody


class Where(operations.Where):
    """The ranks of ``communicator``, else those of ``process_set``, else all."""

    process_sets = process_sets

    def start(self, operation: Operation[T], name: Optional[str]) -> Work[T]:
        """Begin it and return at once."""
        return Work(self.begin(operation, name), operation.finish)


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
