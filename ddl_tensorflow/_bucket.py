"""``reduction``: combines gradients over the ranks as one operation, in the memory where TensorFlow has them.

Large gradients stay where they are: a copy to memory that ranks share would take longer than it saves. Small gradients
are combined together: they are copied one behind another, and back, because each operation takes time.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import accumulate
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import ddl
from ddl import memory
from ddl.adapter.adasum import adasum_
from ddl.adapter.operations import Operation, OperationGroup, Signature, Waitable, at_once
from ddl.communicator import Communicator
from ddl.memory import Pieces
from ddl_tensorflow import _operations

__all__ = ["absent", "reduction"]

Array = np.ndarray[Any, Any]

_VERB = "gradients"
_SMALL = 32 << 10  #: bytes; up to that, copying costs less than an operation between hosts


class _Pool:
    """Memory that ranks share, for the small ones. Any thread may take of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: Dict[Tuple[np.dtype[Any], int], List[Array]] = defaultdict(list)

    def take(self, dtype: np.dtype[Any], length: int) -> Array:
        """Return an array of any content."""
        with self._lock:
            free = self._free[dtype, length]
            if free:
                return free.pop()
        raw = memory.empty(length * dtype.itemsize, np.uint8)
        return raw.view(dtype)

    def give_back(self, array: Array) -> None:
        """Let others use it. Do not call this after an error: the core may still write to the array."""
        with self._lock:
            self._free[array.dtype, array.size].append(array)


_pool = _Pool()


class _FusedBuffer:
    """Some arrays of one type, copied behind one another."""

    def __init__(self, targets: Sequence[Array]) -> None:
        self._targets = [_operations.numbers(target) for target in targets]
        sizes = [target.size for target in self._targets]
        *self.starts, length = accumulate(sizes, initial=0)
        self.flat = _pool.take(self._targets[0].dtype, length)
        self._pieces = Pieces(self.flat, range(len(sizes)), sizes)
        self._pieces.pack(self._targets)

    def copy_back(self) -> None:
        """Hand out what has become of them."""
        self._pieces.unpack(self._targets)
        _pool.give_back(self.flat)


def _grouped(targets: Sequence[Array], op: ddl.ReduceOp) -> Tuple[List[Array], List[_FusedBuffer]]:
    """Return those that are sent from where they are, and the others. Depends on types and shapes only."""
    alone: List[Array] = []
    small: Dict[np.dtype[Any], List[Array]] = {}
    for target in targets:
        if target.size and (target.nbytes <= _SMALL or op == ddl.Adasum):
            small.setdefault(target.dtype, []).append(target)
        elif target.size:
            alone.append(target)
    return alone, [_FusedBuffer(same_type) for same_type in small.values()]


def reduction(
    targets: Sequence[Array], op: ddl.ReduceOp, prescale: float = 1.0, postscale: float = 1.0, detail: str = ""
) -> Operation[None]:
    """All-reduce each of ``targets``, contiguous and writable, in place, when all ranks have submitted the same.

    ``detail``: what else ranks must have alike. If they differ, nothing is run any more on these ranks: a step of which
    a part has failed cannot be paired with that of other ranks.
    """
    described = tuple((_operations.type_name(target.dtype), target.shape) for target in targets)
    alone, together = _grouped(targets, op)

    operations = [_operations.allreduce(target, op, prescale, postscale) for target in alone]
    operations += [_of_many(bucket, op, prescale, postscale) for bucket in together]
    how = operations[0].signature.detail if operations else f"op={op.name}"

    def finish(_: Any) -> None:
        for part in operations:
            part.finish(None)
        for bucket in together:
            bucket.copy_back()

    return Operation(
        Signature(_VERB, described, how + detail),
        lambda communicator: OperationGroup([part.start(communicator) for part in operations]),
        finish,
        _in_turn(operations),
        breaks=True,
    )


def _of_many(bucket: _FusedBuffer, op: ddl.ReduceOp, prescale: float, postscale: float) -> Operation[None]:
    whole = _operations.allreduce(bucket.flat, op, prescale, postscale)
    if op != ddl.Adasum:
        return whole
    return at_once(
        whole.signature, lambda communicator: adasum_(communicator, bucket.flat, starts=bucket.starts), whole.finish
    )


def _in_turn(operations: Sequence[Operation[None]]) -> Optional[Callable[[Communicator], Any]]:
    """Return a function that runs them one after the other, the fastest way on one host; None between hosts."""
    topology = ddl.world().topology
    if topology.local_size != topology.size:
        return None

    def run(communicator: Communicator) -> None:
        for part in operations:
            if part.call is None:
                part.start(communicator).wait()
            else:
                part.call(communicator)

    return run


def absent(signature: Signature) -> Callable[[Communicator], Waitable]:
    """Return what a rank that has joined does in place of the operation: it supplies zeros to gradients, too."""
    if signature.verb != _VERB:
        return _operations.absent(signature)
    op = ddl.ReduceOp[signature.detail.replace(",", " ").split()[0].partition("=")[2]]
    zeros = [np.zeros(shape, name) for name, shape in signature.tensors]
    return reduction(zeros, op).start
