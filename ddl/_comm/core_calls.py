"""What each verb hands to the core: the buffers, their lengths, and what the caller gets back.

A verb whose sizes may differ by rank exchanges them first (size_exchange.py). That exchange blocks, even if the verb
does not. What one rank alone can refuse is refused here, before anything is sent.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any, List, NoReturn, Optional, Sequence, Tuple, Type, TypeVar

import numpy as np

from ddl import _core
from ddl._comm import size_exchange
from ddl._comm.arrays import as_array, for_caller, new_like, not_none
from ddl._comm.gpu_arrays import ImportingWork, imported, is_on_gpu, is_unimported
from ddl.errors import CommunicatorError, InvalidArgument
from ddl.plan.ir import Collective
from ddl.reduce_op import OpLike, ReduceOp, Sum, parse_op

__all__ = ["Call", "CoreCalls", "check_splits"]

T = TypeVar("T")


#: One call of the core, ready to be run or started.
Call = _core.Call


class CoreCalls:
    """Builds the calls of one communicator."""

    def __init__(self, core: _core.Communicator, rank: int, size: int) -> None:
        self._core = core
        self._rank = rank
        self._size = size
        self.run_alike = core.call  # no method around it, which would take longer than the call of a small array

    def run(self, call: Call[T], label: str = "") -> T:
        """Make the call, wait for its end and return its result."""
        result: T = imported(self._core.run(call, label))
        return result

    def start(self, call: Call[Any], label: str = "") -> _core.Work:
        """Make the call and return the handle of what is now under way."""
        begun = self._core.start(call, label)
        return ImportingWork(begun) if is_unimported(call.result) else begun

    def attempt(self, call: Call[Any]) -> Optional[_core.Work]:
        """Run a call whose arrays say all of the sizes, for a caller that must not sleep: see ``Negotiator``.

        Where it would sleep, return what goes on instead; the arrays must live until that has ended.
        """
        return self._core.attempt(call)

    def into(self, verb: str, collective: Collective, x: Any, out: T, op: ReduceOp = Sum) -> T:
        """Make a blocking call whose arrays say all of the sizes, with the least overhead; return ``out``."""
        if x is None or out is None:
            not_none(verb, None)
        self._core.call(collective, x, out, op, 0)
        return out

    # --- one buffer, the same on every rank ---

    def allreduce(self, x: Any, op: OpLike) -> Call[np.ndarray]:
        array = as_array(x)
        output = new_like(array)
        return Call(Collective.ALLREDUCE, array, output, for_caller(output), op=parse_op(op, "allreduce"))

    def allreduce_(self, x: T, op: OpLike, residual: Any = None) -> Call[T]:
        operator = parse_op(op, "allreduce_")
        return Call(Collective.ALLREDUCE, not_none("allreduce_", x), x, x, op=operator, residual=residual)

    def broadcast(self, x: Any, root: int) -> Call[np.ndarray]:
        self.check_rank("broadcast", "root", root)
        array = as_array(x)
        output = new_like(array)
        source = array if self._rank == root else None
        return Call(Collective.BROADCAST, source, output, for_caller(output), root=root)

    def broadcast_(self, x: T, root: int, sizes_for: int = 0) -> Call[T]:
        self.check_rank("broadcast_", "root", root)
        source = not_none("broadcast_", x) if self._rank == root else None
        return Call(Collective.BROADCAST, source, x, x, root=root, sizes_for=sizes_for)

    def reduce(self, x: Any, root: int, op: OpLike) -> Call[Optional[np.ndarray]]:
        self.check_rank("reduce", "root", root)
        array = as_array(x)
        output = new_like(array) if self._rank == root else None
        return Call(Collective.REDUCE, array, output, for_caller(output), op=parse_op(op, "reduce"), root=root)

    # --- a block for each rank ---

    def reducescatter(self, x: Any, op: OpLike) -> Call[np.ndarray]:
        array = as_array(x)
        if array.ndim == 0:
            raise InvalidArgument("reducescatter: an array without dimensions has no rows to scatter")
        rows = size_exchange.split_evenly(array.shape[0], self._size)
        width = math.prod(array.shape[1:])
        output = new_like(array, (rows[self._rank], *array.shape[1:]))
        lengths = [n * width for n in rows]
        operator = parse_op(op, "reducescatter")
        return Call(Collective.REDUCESCATTER, array, output, for_caller(output), op=operator, part_lengths=lengths)

    def allgather(self, x: Any) -> Call[np.ndarray]:
        array = as_array(x)
        lengths, total = self._gathered("allgather", Collective.ALLGATHER, array)
        output = new_like(array, (total, *array.shape[1:]))
        return Call(
            *(Collective.ALLGATHER, array, output, for_caller(output)),
            part_lengths=lengths,
            bytes=output.nbytes,
            count_differs=True,
        )

    def gather(self, x: Any, root: int) -> Call[Optional[np.ndarray]]:
        self.check_rank("gather", "root", root)
        array = as_array(x)
        lengths, total = self._gathered("gather", Collective.GATHER, array)
        output = new_like(array, (total, *array.shape[1:])) if self._rank == root else None
        return Call(
            *(Collective.GATHER, array, output, for_caller(output)),
            root=root,
            part_lengths=lengths,
            bytes=sum(lengths) * array.itemsize,
            count_differs=True,
        )

    def scatter(self, x: Any, root: int) -> Call[np.ndarray]:
        self.check_rank("scatter", "root", root)
        like = as_array(x) if self._rank == root or is_on_gpu(x) else None  # elsewhere: of which kind the result is
        array = like if self._rank == root else None
        head = np.zeros(size_exchange.HEAD, dtype=np.int64) if array is None else size_exchange.row(array)
        self.run(self.broadcast_(head, root, sizes_for=Collective.SCATTER))
        shape = size_exchange.shape_of(head)
        if not shape:
            raise size_exchange.ranks_differ(f"scatter: rank {root} passed an array without dimensions; it has no rows")
        rows = size_exchange.split_evenly(shape[0], self._size)
        width = math.prod(shape[1:])
        like = np.empty(0, np.dtype(size_exchange.decode_type(head))) if like is None else like
        output = new_like(like, (rows[self._rank], *shape[1:]))
        return Call(
            *(Collective.SCATTER, array, output, for_caller(output)),
            root=root,
            part_lengths=[n * width for n in rows],
            bytes=shape[0] * width * like.itemsize,
            count_differs=True,
        )

    def alltoall(self, x: Any, splits: Optional[Sequence[int]]) -> Call[Any]:
        array = as_array(x)
        own_splits = check_splits(array, splits, self._size)
        rows = self.exchange(Collective.ALLTOALL, size_exchange.row(array, own_splits))
        size_exchange.check_rows("alltoall", rows)
        width = math.prod(array.shape[1:])
        matrix = rows[:, size_exchange.HEAD :]
        received = matrix[:, self._rank].copy()
        output = new_like(array, (int(received.sum()), *array.shape[1:]))
        result = for_caller(output)
        return Call(
            *(Collective.ALLTOALL, array, output, result if splits is None else (result, received)),
            part_lengths=[int(n) * width for n in matrix.ravel()],
            bytes=int(matrix.sum(axis=1).max()) * width * array.itemsize,
            count_differs=True,
        )

    def joined(self, data: np.ndarray) -> Tuple[np.ndarray, List[int]]:
        """All-gather bytes of different lengths and return them with the lengths. Blocks."""
        lengths, total = self._gathered("allgather_object", Collective.ALLGATHER, data)
        output = np.empty(total, dtype=data.dtype)
        call = Call(
            *(Collective.ALLGATHER, data, output, output),
            part_lengths=lengths,
            bytes=output.nbytes,
            count_differs=True,
        )
        return self.run(call), lengths

    # --- how it has ended ---

    @property
    def failed(self) -> bool:
        return self._core.failed

    def check(self) -> None:
        self._core.check()

    def fail(self, kind: Type[CommunicatorError], culprit: int, reason: str) -> NoReturn:
        self._core.fail(kind.__name__, culprit, reason, True)
        self._core.check()
        raise AssertionError("a communicator that has failed raises why")

    # --- agreeing, refusing ---

    def exchange(self, purpose: Collective, row: np.ndarray) -> np.ndarray:
        """All-gather one row of sizes per rank, before ``purpose``. Blocks."""
        rows = np.empty((self._size, row.size), dtype=np.int64)
        call = Call(
            *(Collective.ALLGATHER, row, rows, rows),
            part_lengths=[row.size],
            bytes=rows.nbytes,
            sizes_for=purpose,
        )
        return self.run(call)

    def _gathered(self, verb: str, purpose: Collective, array: np.ndarray) -> Tuple[List[int], int]:
        """Return the elements that each rank contributes, and the rows of all of them together."""
        rows = self.exchange(purpose, size_exchange.row(array))
        size_exchange.check_rows(verb, rows)
        width = math.prod(array.shape[1:])
        return [int(row[2]) * width for row in rows], sum(int(row[2]) for row in rows)

    def check_rank(self, verb: str, what: str, rank: Any) -> None:
        if isinstance(rank, ReduceOp):  # a number, too, and never meant as a rank
            raise InvalidArgument(f"{verb}: {what}={rank!r} is an operator; pass op={rank!r} by its name")
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self._size:
            raise InvalidArgument(f"{verb}: {what}={rank!r} is no rank of a communicator of {self._size}")

    def check_peer(self, verb: str, rank: Any) -> None:
        self.check_rank(verb, "the other rank", rank)
        if rank == self._rank:
            raise InvalidArgument(f"{verb}: rank {rank} cannot send to itself")


def check_splits(array: np.ndarray, splits: Optional[Sequence[int]], size: int) -> List[int]:
    """Return how many rows of ``array`` go to each of ``size`` ranks; ``InvalidArgument`` if that cannot be."""
    if array.ndim == 0:
        raise InvalidArgument("alltoall: an array without dimensions has no rows to send")
    rows = array.shape[0]
    if splits is None:
        if rows % size:
            raise InvalidArgument(f"alltoall: {rows} rows do not divide among {size} ranks; give splits")
        return [rows // size] * size
    try:
        counts = [index(n) for n in splits]
    except TypeError:
        raise InvalidArgument(f"alltoall: splits {splits!r:.200} must be whole numbers, one per rank") from None
    if len(counts) != size or min(counts) < 0 or sum(counts) != rows:
        raise InvalidArgument(
            f"alltoall: splits {counts} must be {size} numbers (one per rank), none negative, that sum to "
            f"the {rows} rows of the array"
        )
    return counts
