"""On which ranks an op runs: negotiated on a process set, since ranks run the ops of a graph in any order."""

from __future__ import annotations

from typing import Optional, TypeVar

from ddl.adapter import operations
from ddl.adapter.operations import CompletedOperation, Operation, Waitable
from ddl.adapter.process_sets import ProcessSets
from ddl_tensorflow._bucket import absent
from ddl_tensorflow._names import name_here

__all__ = ["Where", "global_process_set", "process_sets"]

T = TypeVar("T")

process_sets = ProcessSets(absent)
global_process_set = process_sets.everybody


class Where(operations.Where):
    """The ranks of ``process_set``; None: all."""

    process_sets = process_sets

    def run(self, operation: Operation[T], name: Optional[str] = None) -> T:
        """Do it, under the name that it has where TensorFlow runs the op, and return its result."""
        return super().run(operation, name_here(name))

    def make(self, operation: Operation[T], name: Optional[str], sleeps: bool) -> Waitable:
        """As ``run``, and return its result as what has ended; if not ``sleeps``, what may have to be waited for."""
        if sleeps:
            return CompletedOperation(self.run(operation, name))
        return self.attempt(operation, name_here(name))

    def begin(self, operation: Operation[T], name: Optional[str] = None) -> Waitable:
        """Start it, under that name; ``operation.finish`` is the caller's affair."""
        return super().begin(operation, name_here(name))
