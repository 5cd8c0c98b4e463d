"""``Communicator``: a group of ranks and the collectives on it.

Every method that names ranks means ranks *of this communicator*. All ranks of a communicator make the same collective
calls in the same order; from one thread at a time. Arrays are numpy arrays, or anything on the CPU that speaks DLPack;
arrays from ``ddl.empty`` move fastest. After a ``CommunicatorError`` the contents of the arrays under way are undefined,
and every later call raises the same error.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from ddl import _core, objects, sizes
from ddl.errors import InvalidArgument
from ddl.group import Group
from ddl.plan.ir import Collective
from ddl.reduce_op import Average, ReduceOp

__all__ = ["Communicator", "Work"]

Work = _core.Work


def _as_array(x: Any) -> np.ndarray:
    """Return ``x`` as a contiguous numpy array, without a copy where it can be."""
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)
    if isinstance(x, (bool, int, float, np.generic)):
        return np.asarray(x)
    if hasattr(x, "__dlpack__"):
        try:
            return np.ascontiguousarray(np.from_dlpack(x))
        except (BufferError, RuntimeError, TypeError) as error:
            raise InvalidArgument(
                f"a {type(x).__name__} cannot become a numpy array ({error}); use an in-place verb, or convert it"
            ) from error
    raise InvalidArgument(f"a {type(x).__name__} is no array; pass a numpy array or anything with DLPack on the CPU")


class Communicator:
    """A group of ranks. Made by ``ddl.init`` (the world) and by ``split``.

    Thread-safety: one thread submits at a time; any thread may wait for a ``Work``.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._core = group.core
        self.rank = group.rank
        self.size = group.size

    def __repr__(self) -> str:
        return f"<ddl.Communicator number {self._group.number}, rank {self.rank} of {self.size}>"

    # --- all-reduce, broadcast: also in place ---

    def allreduce(self, x: Any, *, op: ReduceOp = Average) -> np.ndarray:
        """Combine ``x`` over all ranks and return the result, a new array of the same shape and type, on all of them.

        Collective, blocking. ``x`` has the same shape and type on every rank. All ranks get the same bits.
        Raises ``InvalidArgument`` before anything is sent; ``CollectiveMismatch`` if ranks call differently.

        >>> mean = ddl.allreduce(gradient)
        """
        array = _as_array(x)
        output = np.empty_like(array)
        self._core.allreduce(array, output, op)
        return output

    def allreduce_(self, x: Any, *, op: ReduceOp = Average) -> Any:
        """As ``allreduce``, in place: ``x`` must be contiguous and writable. Returns ``x``."""
        return self._core.allreduce(x, x, op)

    def allreduce_async(self, x: Any, *, op: ReduceOp = Average, name: str = "") -> Work:
        """As ``allreduce``, without blocking: returns a ``Work`` whose ``wait()`` returns the result.

        ``x`` must not be written before the work is done. ``name`` appears in errors.
        """
        array = _as_array(x)
        output = np.empty_like(array)
        return self._core.start(Collective.ALLREDUCE, array, output, op=op, label=name, result=output)

    def allreduce_async_(self, x: Any, *, op: ReduceOp = Average, name: str = "") -> Work:
        """As ``allreduce_``, without blocking."""
        return self._core.start(Collective.ALLREDUCE, x, x, op=op, label=name, result=x)

    def broadcast(self, x: Any, *, root: int = 0) -> np.ndarray:
        """Return a new array with the contents of ``x`` of rank ``root``. Collective, blocking.

        ``x`` has the same shape and type on every rank; only the root's contents matter.
        """
        array, output = self._broadcast_buffers(x, root)
        self._core.run(Collective.BROADCAST, array, output, root=root)
        return output

    def broadcast_(self, x: Any, *, root: int = 0) -> Any:
        """As ``broadcast``, in place: overwrites ``x`` on all ranks but the root. Returns ``x``."""
        self._check_rank("broadcast_", "root", root)
        return self._core.run(Collective.BROADCAST, x if self.rank == root else None, x, root=root, result=x)

    def broadcast_async(self, x: Any, *, root: int = 0) -> Work:
        """As ``broadcast``, without blocking."""
        array, output = self._broadcast_buffers(x, root)
        return self._core.start(Collective.BROADCAST, array, output, root=root, result=output)

    def broadcast_async_(self, x: Any, *, root: int = 0) -> Work:
        """As ``broadcast_``, without blocking."""
        self._check_rank("broadcast_async_", "root", root)
        return self._core.start(Collective.BROADCAST, x if self.rank == root else None, x, root=root, result=x)

    def _broadcast_buffers(self, x: Any, root: int) -> Tuple[Optional[np.ndarray], np.ndarray]:
        self._check_rank("broadcast", "root", root)
        array = _as_array(x)
        return (array if self.rank == root else None), np.empty_like(array)

    # --- reduce-scatter, all-gather, all-to-all ---

    def reducescatter(self, x: Any, *, op: ReduceOp = Average) -> np.ndarray:
        """Combine ``x`` over all ranks and return this rank's share of the rows (first dimension).

        Collective, blocking. ``x`` has the same shape and type on every rank. Where the rows do not divide by the
        number of ranks, the first ranks get one more.
        """
        return self._reducescatter(x, op, wait=True)

    def reducescatter_async(self, x: Any, *, op: ReduceOp = Average) -> Work:
        """As ``reducescatter``, without blocking."""
        return self._reducescatter(x, op, wait=False)

    def _reducescatter(self, x: Any, op: ReduceOp, *, wait: bool) -> Any:
        array = _as_array(x)
        if array.ndim == 0:
            raise InvalidArgument("reducescatter: an array without dimensions has no rows to scatter")
        rows = sizes.split_evenly(array.shape[0], self.size)
        width = math.prod(array.shape[1:])
        output = np.empty((rows[self.rank], *array.shape[1:]), dtype=array.dtype)
        lengths = [n * width for n in rows]
        call = self._core.run if wait else self._core.start
        return call(Collective.REDUCESCATTER, array, output, op=op, part_lengths=lengths, result=output)

    def allgather(self, x: Any) -> np.ndarray:
        """Return the arrays of all ranks, one after the other along the first dimension, in rank order.

        Collective, blocking. The first dimension may differ by rank (also be 0); type and other dimensions not.
        Raises ``InvalidArgument`` on all ranks, with the communicator unharmed, if they do.
        """
        return self._allgather(x, wait=True)

    def allgather_async(self, x: Any) -> Work:
        """As ``allgather``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._allgather(x, wait=False)

    def _allgather(self, x: Any, *, wait: bool) -> Any:
        array = _as_array(x)
        rows = self._exchange(Collective.ALLGATHER, sizes.row(array))
        sizes.check_alike("allgather", rows)
        width = math.prod(array.shape[1:])
        lengths = [int(one[2]) * width for one in rows]
        output = np.empty((sum(int(one[2]) for one in rows), *array.shape[1:]), dtype=array.dtype)
        call = self._core.run if wait else self._core.start
        return call(
            Collective.ALLGATHER,
            array,
            output,
            part_lengths=lengths,
            bytes=output.nbytes,
            count_differs=True,
            result=output,
        )

    def alltoall(self, x: Any, splits: Optional[Sequence[int]] = None) -> Any:
        """Send a run of rows of ``x`` to each rank; return the rows received, in rank order.

        Collective, blocking. ``splits[r]`` rows go to rank ``r`` and must sum to the first dimension; without
        ``splits`` the rows are dealt evenly and must divide by the number of ranks. With ``splits`` the result is the
        pair (rows, received splits).
        """
        return self._alltoall(x, splits, wait=True)

    def alltoall_async(self, x: Any, splits: Optional[Sequence[int]] = None) -> Work:
        """As ``alltoall``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._alltoall(x, splits, wait=False)

    def _alltoall(self, x: Any, splits: Optional[Sequence[int]], *, wait: bool) -> Any:
        array = _as_array(x)
        mine = self._check_splits(array, splits)
        rows = self._exchange(Collective.ALLTOALL, sizes.row(array, mine))
        sizes.check_alike("alltoall", rows)
        width = math.prod(array.shape[1:])
        matrix = rows[:, sizes.HEAD :]
        received = matrix[:, self.rank]
        output = np.empty((int(received.sum()), *array.shape[1:]), dtype=array.dtype)
        call = self._core.run if wait else self._core.start
        return call(
            Collective.ALLTOALL,
            array,
            output,
            part_lengths=[int(n) * width for n in matrix.ravel()],
            bytes=int(matrix.sum(axis=1).max()) * width * array.itemsize,
            count_differs=True,
            result=output if splits is None else (output, received.copy()),
        )

    def _check_splits(self, array: np.ndarray, splits: Optional[Sequence[int]]) -> List[int]:
        if array.ndim == 0:
            raise InvalidArgument("alltoall: an array without dimensions has no rows to send")
        rows = array.shape[0]
        if splits is None:
            if rows % self.size:
                raise InvalidArgument(f"alltoall: {rows} rows do not divide among {self.size} ranks; give splits")
            return [rows // self.size] * self.size
        given = [int(n) for n in splits]
        if len(given) != self.size or min(given) < 0 or sum(given) != rows:
            raise InvalidArgument(
                f"alltoall: splits {given} must be {self.size} numbers (one per rank), none negative, that sum to the "
                f"{rows} rows of the array"
            )
        return given

    # --- to and from one rank ---

    def reduce(self, x: Any, *, root: int = 0, op: ReduceOp = Average) -> Optional[np.ndarray]:
        """Combine ``x`` over all ranks; the result is returned on ``root``, None elsewhere. Collective, blocking."""
        return self._reduce(x, root, op, wait=True)

    def reduce_async(self, x: Any, *, root: int = 0, op: ReduceOp = Average) -> Work:
        """As ``reduce``, without blocking."""
        return self._reduce(x, root, op, wait=False)

    def _reduce(self, x: Any, root: int, op: ReduceOp, *, wait: bool) -> Any:
        self._check_rank("reduce", "root", root)
        array = _as_array(x)
        output = np.empty_like(array) if self.rank == root else None
        call = self._core.run if wait else self._core.start
        return call(Collective.REDUCE, array, output, op=op, root=root, result=output)

    def gather(self, x: Any, *, root: int = 0) -> Optional[np.ndarray]:
        """Return on ``root`` the arrays of all ranks along the first dimension, None elsewhere. Collective, blocking.

        The first dimension may differ by rank, as in ``allgather``.
        """
        return self._gather(x, root, wait=True)

    def gather_async(self, x: Any, *, root: int = 0) -> Work:
        """As ``gather``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._gather(x, root, wait=False)

    def _gather(self, x: Any, root: int, *, wait: bool) -> Any:
        self._check_rank("gather", "root", root)
        array = _as_array(x)
        rows = self._exchange(Collective.GATHER, sizes.row(array))
        sizes.check_alike("gather", rows)
        width = math.prod(array.shape[1:])
        total = sum(int(one[2]) for one in rows)
        output = np.empty((total, *array.shape[1:]), dtype=array.dtype) if self.rank == root else None
        call = self._core.run if wait else self._core.start
        return call(
            Collective.GATHER,
            array,
            output,
            root=root,
            part_lengths=[int(one[2]) * width for one in rows],
            bytes=total * width * array.itemsize,
            count_differs=True,
            result=output,
        )

    def scatter(self, x: Any = None, *, root: int = 0) -> np.ndarray:
        """Return this rank's share of the rows of the root's ``x``. Collective, blocking.

        ``x`` matters on ``root`` only. Where the rows do not divide, the first ranks get one more.
        """
        return self._scatter(x, root, wait=True)

    def scatter_async(self, x: Any = None, *, root: int = 0) -> Work:
        """As ``scatter``; the shape is exchanged before it returns, the rows afterwards."""
        return self._scatter(x, root, wait=False)

    def _scatter(self, x: Any, root: int, *, wait: bool) -> Any:
        self._check_rank("scatter", "root", root)
        array = _as_array(x) if self.rank == root else None
        head = np.zeros(sizes.HEAD, dtype=np.int64) if array is None else sizes.row(array)
        self._share_sizes(Collective.SCATTER, head, root)
        shape = sizes.shape_of(head)
        if not shape:
            raise InvalidArgument(f"scatter: rank {root} passed an array without dimensions; it has no rows to scatter")
        rows = sizes.split_evenly(shape[0], self.size)
        width = math.prod(shape[1:])
        kind = array.dtype if array is not None else np.dtype(sizes.decode_type(head))
        output = np.empty((rows[self.rank], *shape[1:]), dtype=kind)
        call = self._core.run if wait else self._core.start
        return call(
            Collective.SCATTER,
            array,
            output,
            root=root,
            part_lengths=[n * width for n in rows],
            bytes=shape[0] * width * kind.itemsize,
            count_differs=True,
            result=output,
        )

    # --- barrier, send, recv ---

    def barrier(self) -> None:
        """Return when every rank has called it. Collective, blocking."""
        self._core.run(Collective.BARRIER, None, None)

    def barrier_async(self) -> Work:
        """As ``barrier``, without blocking."""
        return self._core.start(Collective.BARRIER, None, None)

    def send(self, x: Any, dst: int) -> None:
        """Send ``x`` to rank ``dst``, which calls ``recv``. Blocks until ``x`` may be written again. Not collective.

        Messages between two ranks arrive in the order of the calls.
        """
        self._check_peer("send", dst)
        self._core.run(Collective.SEND, x, None, root=dst)

    def send_async(self, x: Any, dst: int) -> Work:
        """As ``send``, without blocking."""
        self._check_peer("send_async", dst)
        return self._core.start(Collective.SEND, x, None, root=dst)

    def recv(self, x: Any, src: int) -> Any:
        """Receive into ``x`` what rank ``src`` sends: the same number of elements of the same type. Returns ``x``.

        Not collective, blocking.
        """
        self._check_peer("recv", src)
        return self._core.run(Collective.RECV, None, x, root=src, result=x)

    def recv_async(self, x: Any, src: int) -> Work:
        """As ``recv``, without blocking."""
        self._check_peer("recv_async", src)
        return self._core.start(Collective.RECV, None, x, root=src, result=x)

    # --- objects ---

    def broadcast_object(self, obj: Any = None, *, root: int = 0, allow_pickle: bool = False) -> Any:
        """Return the root's ``obj`` on every rank. Collective, blocking.

        Plain data (None, bool, int, float, complex, str, bytes, list, tuple, dict, set, numpy arrays) needs nothing;
        anything else needs ``allow_pickle=True`` on every rank, which trusts all ranks to run code on all ranks.
        """
        self._check_rank("broadcast_object", "root", root)
        data = objects.encode(obj, allow_pickle=allow_pickle) if self.rank == root else np.empty(0, np.uint8)
        length = np.array([data.size], dtype=np.int64)
        self._share_sizes(Collective.BROADCAST, length, root)
        if self.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self.broadcast_(data, root=root)
        return obj if self.rank == root else objects.decode(data, allow_pickle=allow_pickle)

    def allgather_object(self, obj: Any, *, allow_pickle: bool = False) -> List[Any]:
        """Return the list of all ranks' ``obj``, in rank order. Collective, blocking. Types: ``broadcast_object``."""
        data = objects.encode(obj, allow_pickle=allow_pickle)
        rows = self._exchange(Collective.ALLGATHER, sizes.row(data))
        lengths = [int(one[2]) for one in rows]
        joined = np.empty(sum(lengths), np.uint8)
        self._core.run(
            Collective.ALLGATHER, data, joined, part_lengths=lengths, bytes=joined.nbytes, count_differs=True
        )
        ends = np.cumsum(lengths)
        return [
            objects.decode(joined[end - length : end], allow_pickle=allow_pickle) for end, length in zip(ends, lengths)
        ]

    # --- the communicator itself ---

    def split(self, color: Optional[int], key: Optional[int] = None) -> Optional[Communicator]:
        """Return a new communicator of the ranks that passed the same ``color``; None for those that passed None.

        Collective over this communicator, blocking. Ranks are ordered by ``key`` (default: their rank here).
        """
        if color is not None and not isinstance(color, (int, np.integer)):
            raise InvalidArgument(f"split: color={color!r} is neither a number nor None")
        group = self._group
        mine = (None if color is None else int(color), self.rank if key is None else int(key), group.next_number)
        members, number = group.children(self.allgather_object(mine))
        core = None if members is None else Group.make_core(group.job, members.index(self.rank), len(members))
        boards = self.allgather_object(None if core is None else core.board_offset)
        if members is None or core is None:
            return None
        return Communicator(group.child(members, number, core, [boards[rank] for rank in members]))

    def abort(self, reason: str = "") -> None:
        """Break the communicator on all ranks: everything under way and every later call raises ``Aborted``."""
        self._core.fail("Aborted", self.rank, f"abort() was called: {reason or 'no reason given'}", True)

    def _exchange(self, purpose: Collective, row: np.ndarray) -> np.ndarray:
        """All-gather one row of sizes per rank, before ``purpose``."""
        rows = np.empty((self.size, row.size), dtype=np.int64)
        self._core.run(
            Collective.ALLGATHER, row, rows, part_lengths=[row.size], bytes=rows.nbytes, sizes_for=purpose
        )
        return rows

    def _share_sizes(self, purpose: Collective, values: np.ndarray, root: int) -> None:
        """Overwrite ``values`` with the root's, before ``purpose``."""
        mine = values if self.rank == root else None
        self._core.run(Collective.BROADCAST, mine, values, root=root, sizes_for=purpose)

    def _check_rank(self, verb: str, what: str, rank: Union[int, Any]) -> None:
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self.size:
            raise InvalidArgument(f"{verb}: {what}={rank!r} is no rank of a communicator of {self.size}")

    def _check_peer(self, verb: str, rank: int) -> None:
        self._check_rank(verb, "the other rank", rank)
        if rank == self.rank:
            raise InvalidArgument(f"{verb}: rank {rank} cannot send to itself")
