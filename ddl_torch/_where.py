"""On which ranks a verb runs, and how: negotiated on a process set, or in the order of the calls on a communicator."""

from __future__ import annotations

from typing import Optional, TypeVar

import ddl
from ddl.negotiation import Request
from ddl.process_sets import ProcessSet, ProcessSets
from ddl_torch._operations import Operation, absent
from ddl_torch._tensors import Work

__all__ = ["Where", "global_process_set", "process_sets"]

T = TypeVar("T")

process_sets = ProcessSets(absent)
global_process_set = process_sets.everybody


class Where:
    """The ranks of ``communicator``, else those of ``process_set``, else all."""

    def __init__(self, process_set: Optional[ProcessSet], communicator: Optional[ddl.Communicator]) -> None:
        self._set = global_process_set if process_set is None else process_set
        self._communicator = communicator
        if communicator is None:
            process_sets.open()

    @property
    def size(self) -> int:
        """How many ranks."""
        return self._set.size() if self._communicator is None else self._communicator.size

    @property
    def rank(self) -> int:
        """This rank's number among them."""
        return self._set.rank() if self._communicator is None else self._communicator.rank

    def index(self, rank: int) -> int:
        """Return the number among them of ``rank``, which is one of the job for a process set."""
        if self._communicator is not None:
            return rank
        return self._set.index(rank)

    def run(self, operation: Operation[T], name: Optional[str]) -> T:
        """Do it and return its result."""
        group = self._communicator
        if group is None:
            raw = self._set.negotiator.run(_request(operation, name))
        elif operation.call is not None:
            raw = operation.call(group)
        else:
            raw = operation.start(group).wait()
        return operation.finish(raw)

    def start(self, operation: Operation[T], name: Optional[str]) -> Work[T]:
        """Begin it and return at once."""
        group = self._communicator
        if group is None:
            return Work(self._set.negotiator.submit(_request(operation, name)), operation.finish)
        return Work(operation.start(group), operation.finish)


def _request(operation: Operation[T], name: Optional[str]) -> Request:
    """Names are those of one kind of operation, as in Horovod."""
    verb = operation.signature.verb
    return Request(operation.signature, operation.start, f"{verb}.{name}" if name else "", operation.call)
