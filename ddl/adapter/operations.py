"""``Operation``: a call of an adapter's verb, ready to run on a communicator; ``Where``: the ranks on which it runs.

It holds what frameworks have in common. Operations are negotiated on a process set, or run on a communicator in the
order of the calls. An adapter makes operations of its own tensors. Before it submits one, it refuses what one rank
alone can refuse.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Generic, List, Optional, Sequence, Tuple, TypeVar

from ddl.adapter.calls import Call, Collective, calls_of
from ddl.adapter.process_sets import ProcessSet, ProcessSets
from ddl.communicator import Communicator
from ddl.errors import InvalidArgument
from ddl.negotiation import timeline
from ddl.negotiation.pending import CompletedOperation, Request, Waitable
from ddl.negotiation.signature import ANY, Signature
from ddl.reduce_op import Average, OpLike, ReduceOp, Sum, parse_op

__all__ = [
    "Operation",
    "OperationGroup",
    "Where",
    "absent",
    "allgather_object",
    "at_once",
    "barrier",
    "broadcast_object",
]
__all__ += ["choose_op", "grouped", "objects"]
# What operations are made of, for adapters.
__all__ += ["ANY", "CompletedOperation", "Request", "Signature", "Waitable", "timeline"]

T = TypeVar("T")


@dataclass
class Operation(Generic[T]):
    """``start`` returns at once, ``call`` when the operation has ended; ``finish`` makes the caller's result of it.

    ``breaks``, ``attempt``: see ``Request``.
    """

    signature: Signature
    start: Callable[[Communicator], Waitable]
    finish: Callable[[Any], T]
    call: Optional[Callable[[Communicator], Any]] = None
    breaks: bool = False
    attempt: Optional[Callable[[Communicator], Optional[Waitable]]] = None

    def request(self, name: Optional[str]) -> Request:
        """Return what is submitted. Names are those of one kind of operation, as in Horovod."""
        known = _known(self.signature.verb, name) if name else ""
        return Request(self.signature, self.start, known, self.call, self.breaks, self.attempt)


@lru_cache(maxsize=4096)  # the same text each time: then it has been hashed
def _known(verb: str, name: str) -> str:
    return f"{verb}.{name}"


def at_once(signature: Signature, call: Callable[[Communicator], Any], finish: Callable[[Any], T]) -> Operation[T]:
    """Do what takes several rounds, and blocks the one who starts it until they are over."""
    return Operation(signature, lambda communicator: CompletedOperation(call(communicator)), finish, call)


def objects(signature: Signature, call: Callable[[Communicator], T]) -> Operation[T]:
    """Exchange objects."""
    return at_once(signature, call, lambda result: result)


def broadcast_object(obj: Any, root: int, name: str, allow_pickle: bool) -> Operation[Any]:
    """Send the object of rank ``root`` of the communicator, which people call ``name``, to all."""
    return objects(
        Signature("broadcast_object", detail=f"root_rank={name}"),
        lambda communicator: communicator.broadcast_object(obj, root=root, allow_pickle=allow_pickle),
    )


def allgather_object(obj: Any, allow_pickle: bool) -> Operation[List[Any]]:
    """Return the objects of all ranks."""
    return objects(
        Signature("allgather_object"),
        lambda communicator: communicator.allgather_object(obj, allow_pickle=allow_pickle),
    )


def barrier() -> Operation[None]:
    """Wait for all ranks."""
    return Operation(
        Signature("barrier"),
        lambda communicator: communicator.barrier_async(),
        lambda _: None,
        lambda communicator: communicator.barrier(),
        attempt=lambda communicator: calls_of(communicator).attempt(Call(Collective.BARRIER, None, None, None)),
    )


def choose_op(average: Optional[bool], op: Optional[OpLike], stacklevel: int = 4) -> ReduceOp:
    """Return the operator of Horovod's two arguments for it, which a public verb has been given.

    Raises ``InvalidArgument`` if both are given, and for what is no operator.

    ``stacklevel``: of the warning; 4 for a verb that one decorator has wrapped.
    """
    if average is None:
        return Average if op is None else parse_op(op)
    if op is not None:
        raise InvalidArgument("average= and op= cannot both be given; use op=")
    warnings.warn("average= is deprecated; use op=Average or op=Sum", DeprecationWarning, stacklevel=stacklevel)
    return Average if average else Sum


class OperationGroup:
    """Operations that were started together."""

    def __init__(self, works: Sequence[Waitable]) -> None:
        self._works = works

    def done(self) -> bool:
        """Return whether all have ended."""
        return all(work.done() for work in self._works)

    def wait(self, timeout: Optional[float] = None) -> List[Any]:
        """Wait for all of them; return their results."""
        return [work.wait(timeout) for work in self._works]


def grouped(operations: Sequence[Operation[T]], verb: str) -> Operation[List[T]]:
    """Do several operations of one kind when all ranks have submitted all of them."""
    tensors = tuple(tensor for operation in operations for tensor in operation.signature.tensors)
    details = sorted({operation.signature.detail for operation in operations})
    return Operation(
        Signature(f"grouped_{verb}", tensors, " ".join(details)),
        lambda communicator: OperationGroup([operation.start(communicator) for operation in operations]),
        lambda results: [operation.finish(result) for operation, result in zip(operations, results)],
    )


def absent(
    signature: Signature, of_zeros: Callable[[str, Tuple[int, ...], ReduceOp], Operation[Any]]
) -> Callable[[Communicator], Waitable]:
    """Return what a rank that has joined does in place of the operation: it supplies zeros to an all-reduce.

    ``of_zeros(dtype, shape, op)``: the adapter's all-reduce of a new tensor of zeros.
    """
    if signature.verb == "barrier":
        return barrier().start
    if signature.verb not in ("allreduce", "grouped_allreduce"):
        raise InvalidArgument("only all-reduces are possible while a rank has joined")
    op = ReduceOp[signature.detail.split()[0].partition("=")[2]]
    return lambda communicator: OperationGroup(
        [of_zeros(dtype, shape, op).start(communicator) for dtype, shape in signature.tensors]
    )


class _Finishing:
    """What was started, and what makes the caller's result of it."""

    def __init__(self, work: Waitable, finish: Callable[[Any], Any]) -> None:
        self._work = work
        self._finish = finish

    def done(self) -> bool:
        """Return whether it has ended, well or not."""
        return self._work.done()

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait for its end and return its result. To be called once."""
        return self._finish(self._work.wait(timeout))


class Where:
    """The ranks of ``communicator``, else those of ``process_set``; None: all. An adapter derives its own."""

    process_sets: ProcessSets  #: the adapter's

    def __init__(self, process_set: Optional[ProcessSet] = None, communicator: Optional[Communicator] = None) -> None:
        self._set = self.process_sets.everybody if process_set is None else process_set
        self.communicator = communicator
        if communicator is None:
            self.process_sets.open()

    @property
    def size(self) -> int:
        """How many ranks."""
        return self._set.size() if self.communicator is None else self.communicator.size

    @property
    def rank(self) -> int:
        """This rank's number among them."""
        return self._set.rank() if self.communicator is None else self.communicator.rank

    def index(self, rank: int) -> int:
        """Return the number among them of ``rank``, which is one of the job for a process set."""
        return self._set.index(rank) if self.communicator is None else rank

    def run(self, operation: Operation[T], name: Optional[str] = None) -> T:
        """Do it and return its result."""
        communicator = self.communicator
        if communicator is None:
            raw = self._set.negotiator.run(operation.request(name))
        elif operation.call is not None:
            raw = operation.call(communicator)
        else:
            raw = operation.start(communicator).wait()
        return operation.finish(raw)

    def attempt(self, operation: Operation[T], name: Optional[str] = None) -> Waitable:
        """As ``run``, but return what can be waited for, which has ended if that took no sleep.

        See ``Negotiator.attempt``. Unlike with ``begin``, what is waited for returns the result of ``run``.
        """
        communicator = self.communicator
        work = (
            operation.start(communicator)
            if communicator is not None
            else self._set.negotiator.attempt(operation.request(name))
        )
        return _Finishing(work, operation.finish)

    def begin(self, operation: Operation[T], name: Optional[str] = None) -> Waitable:
        """Start it and return what can be waited for; ``operation.finish`` is the caller's affair."""
        if self.communicator is None:
            return self._set.negotiator.submit(operation.request(name))
        return operation.start(self.communicator)
