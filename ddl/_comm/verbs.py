"""``Verbs``: the collectives of a communicator, its messages between two ranks, and the objects that it sends.

communicator.py says what holds for all of them. A verb checks what one rank alone can check, and hands the rest to
the core: blocking all-reduces, ``broadcast_`` and ``barrier`` directly, all others by way of core_calls.py.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, TypeVar

import numpy as np

from ddl import _core
from ddl._comm import object_codec
from ddl._comm.arrays import as_array, not_none, readable
from ddl._comm.core_calls import Call, CoreCalls
from ddl._comm.gpu_arrays import GpuArray
from ddl._comm.group import Group
from ddl.errors import InvalidArgument
from ddl.plan.ir import Collective
from ddl.reduce_op import Average, OpLike, ReduceOp, parse_op

__all__ = ["PreparedOperation", "Verbs", "Work"]

Work = _core.Work
# Numbers, as looking up a member of an enumeration takes 70 ns.
_ALLREDUCE = int(Collective.ALLREDUCE)
_BROADCAST = int(Collective.BROADCAST)
_BARRIER = int(Collective.BARRIER)
PreparedOperation = _core.PreparedOperation
T = TypeVar("T")


class Verbs:
    """What a ``Communicator``, which has these attributes, can do with arrays and objects."""

    _group: Group
    _core: _core.Communicator
    _calls: CoreCalls
    rank: int
    size: int

    # --- all-reduce, broadcast: also in place ---

    def allreduce(self, x: Any, *, op: OpLike = Average) -> np.ndarray:
        """Combine ``x`` over all ranks and return the result, a new array, on all of them. Collective, blocking.

        x: an array, a number or a list, of the same shape and type on every rank.
        op: ``ddl.Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product``, or the name of one, "sum". Averages of
            integers are truncated towards zero, and added up as 64 bits, where the sum must fit; other sums wrap, as
            numpy's. Truth values have no average, complex numbers no order and no product.

        All ranks get the same bits. Raises ``InvalidArgument`` before anything is sent; ``CollectiveMismatch`` if ranks
        call differently; ``PeerLost`` if a rank is lost; ``CollectiveTimeout`` if one does not come (DDL_TIMEOUT).

        >>> mean = ddl.allreduce(gradient)
        """
        if op.__class__ is not ReduceOp:  # asked here, as a call would cost more than the question
            op = parse_op(op, "allreduce")
        array = as_array(x)
        if isinstance(array, GpuArray):
            return self._calls.run(self._calls.allreduce(array, op))
        output: np.ndarray = np.empty_like(array)
        self._core.call(_ALLREDUCE, array, output, op)
        return output

    def allreduce_(self, x: T, *, op: OpLike = Average) -> T:
        """Overwrite ``x`` with its combination over all ranks, and return it: ``allreduce`` in place.

        x: an array, contiguous and writable. op: as for ``allreduce``. Raises what ``allreduce`` does.

        >>> ddl.allreduce_(gradient, op="sum")
        """
        if op.__class__ is not ReduceOp:
            op = parse_op(op, "allreduce_")
        if x is None:
            not_none("allreduce_", x)
        self._core.call(_ALLREDUCE, x, x, op)
        return x

    def prepare_allreduce(
        self, x: Any, *, op: OpLike = Average, name: str = "", residual: Any = None
    ) -> PreparedOperation:
        """Return ``allreduce_`` of ``x`` as an object to be called again and again: ``step = prepare_allreduce(x)``.

        Not collective, does not block; ``step()`` is a collective, blocking call like any other, without the cost of
        looking at its arguments. It reads and writes the memory that ``x`` has now, keeps it alive, and returns ``x``.
        ``name`` appears in errors. ``residual``: see ``allreduce_async_``. Raises ``InvalidArgument`` as ``allreduce_``
        does, here and not in ``step()``; that raises what any call does, and ``InvalidState`` while it is under way in
        another thread.

        >>> step = ddl.world().prepare_allreduce(gradient)
        >>> step()
        """
        operator = parse_op(op, "prepare_allreduce")
        return self._core.prepare(Collective.ALLREDUCE, not_none("prepare_allreduce", x), operator, name, residual)

    def allreduce_async(self, x: Any, *, op: OpLike = Average, name: str = "") -> Work:
        """As ``allreduce``, without blocking: returns a ``Work`` whose ``wait()`` returns the result.

        ``x`` must not be written before the work is done. ``name`` appears in errors.
        """
        return self._calls.start(self._calls.allreduce(x, op), name)

    def allreduce_async_(self, x: Any, *, op: OpLike = Average, name: str = "", residual: Any = None) -> Work:
        """As ``allreduce_``, without blocking.

        ``residual`` (error feedback): float32, as many as ``x`` has, contiguous and writable, zeros at first. On a
        communicator whose ``wire`` is "int8", what is lost of ``x`` on this rank when it is written shorter stays
        there, and is added to it the next time; after an error it is undefined, as ``x``. Elsewhere it is neither read
        nor written. Raises ``InvalidArgument`` for any other array.
        """
        return self._calls.start(self._calls.allreduce_(x, op, residual), name)

    def broadcast(self, x: Any, root: int = 0) -> np.ndarray:
        """Return a new array with the contents of ``x`` of rank ``root``. Collective, blocking.

        x: an array, a number or a list, of the same shape and type on every rank; only the root's contents matter.
        root: the rank whose contents all get. Raises what ``allreduce`` does.

        >>> weights = ddl.broadcast(weights, 0)
        """
        return self._calls.run(self._calls.broadcast(x, root))

    def broadcast_(self, x: T, root: int = 0) -> T:
        """Overwrite ``x`` on all ranks with that of rank ``root``, and return it: ``broadcast`` in place.

        x: an array, contiguous and writable. Raises what ``allreduce`` does.

        >>> ddl.broadcast_(weights, 0)
        """
        if root.__class__ is not int or not 0 <= root < self.size:  # asked here, as above
            self._calls.check_rank("broadcast_", "root", root)
        if x is None:
            not_none("broadcast_", x)
        self._core.call(_BROADCAST, x if root == self.rank else None, x, 0, root)
        return x

    def broadcast_async(self, x: Any, root: int = 0) -> Work:
        """As ``broadcast``, without blocking."""
        return self._calls.start(self._calls.broadcast(x, root))

    def broadcast_async_(self, x: Any, root: int = 0) -> Work:
        """As ``broadcast_``, without blocking."""
        return self._calls.start(self._calls.broadcast_(x, root))

    # --- reduce-scatter, all-gather, all-to-all ---

    def reducescatter(self, x: Any, *, op: OpLike = Average, out: Any = None) -> Any:
        """Combine ``x`` over all ranks and return this rank's share of the rows (first dimension).

        Collective, blocking. ``x`` has the same shape and type on every rank. Where the rows do not divide by the
        number of ranks, the first ranks get one more. ``op``: as for ``allreduce``. ``out``, given on all ranks or on
        none: a contiguous array for the result, of 1/size of the elements of ``x``; it is returned. Raises what
        ``allreduce`` does.

        >>> rows = ddl.reducescatter(gradients)
        """
        if out is not None:
            operator = parse_op(op, "reducescatter")
            return self._calls.into("reducescatter", Collective.REDUCESCATTER, x, out, operator)
        return self._calls.run(self._calls.reducescatter(x, op))

    def reducescatter_async(self, x: Any, *, op: OpLike = Average) -> Work:
        """As ``reducescatter``, without blocking."""
        return self._calls.start(self._calls.reducescatter(x, op))

    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """Return the arrays of all ranks, one after the other along the first dimension, in rank order.

        Collective, blocking. The first dimension of ``x`` may differ by rank (also be 0); type and other sizes may not.
        Raises ``InvalidArgument`` on all ranks, with the communicator unharmed, if they do. ``out``, given on all
        ranks or on none: a contiguous array for the result, which is returned; all ranks then pass as many elements
        and no sizes are exchanged.

        >>> everybody = ddl.allgather(rows)
        """
        if out is not None:
            return self._calls.into("allgather", Collective.ALLGATHER, x, out)
        return self._calls.run(self._calls.allgather(x))

    def allgather_async(self, x: Any) -> Work:
        """As ``allgather``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._calls.start(self._calls.allgather(x))

    def alltoall(self, x: Any, splits: Optional[Sequence[int]] = None, *, out: Any = None) -> Any:
        """Send a run of rows of ``x`` to each rank; return the rows received, in rank order.

        Collective, blocking. ``splits[r]`` rows go to rank ``r`` and must sum to the first dimension; without
        ``splits`` the rows are dealt evenly and must divide by the number of ranks. With ``splits`` the result is the
        pair (rows, received splits). ``out``, given on all ranks or on none, and without ``splits``: a contiguous
        array like ``x`` for the result, which is returned; all ranks then pass as many elements and no sizes are
        exchanged.
        """
        if out is not None:
            if splits is not None:
                raise InvalidArgument("alltoall: out= is for even shares; leave splits away, or out")
            return self._calls.into("alltoall", Collective.ALLTOALL, x, out)
        return self._calls.run(self._calls.alltoall(x, splits))

    def alltoall_async(self, x: Any, splits: Optional[Sequence[int]] = None) -> Work:
        """As ``alltoall``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._calls.start(self._calls.alltoall(x, splits))

    # --- to and from one rank ---

    def reduce(self, x: Any, root: int = 0, *, op: OpLike = Average) -> Optional[np.ndarray]:
        """Combine ``x`` over all ranks; the result is returned on ``root``, None elsewhere. Collective, blocking.

        Shapes, types, operators and errors are those of ``allreduce``. ``root``: a rank, the same on all ranks.
        """
        return self._calls.run(self._calls.reduce(x, root, op))

    def reduce_async(self, x: Any, root: int = 0, *, op: OpLike = Average) -> Work:
        """As ``reduce``, without blocking."""
        return self._calls.start(self._calls.reduce(x, root, op))

    def gather(self, x: Any, root: int = 0) -> Optional[np.ndarray]:
        """Return on ``root`` the arrays of all ranks along the first dimension, None elsewhere. Collective, blocking.

        The first dimension may differ by rank. Types and errors are those of ``allgather``.
        """
        return self._calls.run(self._calls.gather(x, root))

    def gather_async(self, x: Any, root: int = 0) -> Work:
        """As ``gather``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._calls.start(self._calls.gather(x, root))

    def scatter(self, x: Any = None, root: int = 0) -> np.ndarray:
        """Return this rank's share of the rows of the root's ``x``. Collective, blocking.

        ``x`` matters on ``root`` only. Where the rows do not divide, the first ranks get one more. Of any type; errors
        are those of ``broadcast``.
        """
        return self._calls.run(self._calls.scatter(x, root))

    def scatter_async(self, x: Any = None, root: int = 0) -> Work:
        """As ``scatter``; the shape is exchanged before it returns, the rows afterwards."""
        return self._calls.start(self._calls.scatter(x, root))

    # --- barrier, send, recv ---

    def barrier(self) -> None:
        """Return when every rank has called it. Collective, blocking.

        Raises ``CollectiveTimeout`` if one does not (DDL_TIMEOUT), ``PeerLost`` if one is lost.

        >>> ddl.barrier()
        """
        self._core.call(_BARRIER, None, None, 0, 0)

    def barrier_async(self) -> Work:
        """As ``barrier``, without blocking."""
        return self._calls.start(Call(Collective.BARRIER, None, None, None))

    def send(self, x: Any, dst: int) -> None:
        """Send ``x`` to rank ``dst``, which calls ``recv``. Blocks until ``x`` may be written again. Not collective.

        Messages between two ranks arrive in the order of the calls. ``x``: of any shape and type. Raises
        ``InvalidArgument`` for a rank that is none or this one, ``PeerLost`` and ``CollectiveTimeout`` as a collective.
        """
        self._calls.check_peer("send", dst)
        self._calls.run(Call(Collective.SEND, readable("send", x), None, None, root=dst))

    def send_async(self, x: Any, dst: int) -> Work:
        """As ``send``, without blocking."""
        self._calls.check_peer("send", dst)
        return self._calls.start(Call(Collective.SEND, readable("send", x), None, None, root=dst))

    def recv(self, x: T, src: int) -> T:
        """Receive into ``x`` what rank ``src`` sends: the same number of elements of the same type. Returns ``x``.

        Not collective, blocking. Errors are those of ``send``; ``CollectiveMismatch`` for a message of another size.
        """
        self._calls.check_peer("recv", src)
        return self._calls.run(Call(Collective.RECV, None, not_none("recv", x), x, root=src))

    def recv_async(self, x: Any, src: int) -> Work:
        """As ``recv``, without blocking."""
        self._calls.check_peer("recv", src)
        return self._calls.start(Call(Collective.RECV, None, not_none("recv", x), x, root=src))

    # --- objects ---

    def broadcast_object(self, obj: Any = None, root: int = 0, *, allow_pickle: bool = False) -> Any:
        """Return the ``obj`` of rank ``root`` on every rank. Collective, blocking.

        Plain data (None, bool, int, float, complex, str, bytes, list, tuple, dict, set, numpy arrays) needs nothing;
        anything else needs ``allow_pickle=True`` on every rank, which trusts all ranks to run code on all ranks.
        Raises ``InvalidArgument``, on all ranks, for an object that cannot be sent.

        >>> settings = ddl.broadcast_object({"epochs": 10}, 0)
        """
        self._calls.check_rank("broadcast_object", "root", root)
        data = self._encoded("broadcast_object", obj, allow_pickle) if self.rank == root else np.empty(0, np.uint8)
        length = np.array([data.size], dtype=np.int64)
        self._calls.run(self._calls.broadcast_(length, root, sizes_for=Collective.BROADCAST))
        if self.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self._calls.run(self._calls.broadcast_(data, root))
        if self.rank == root and not object_codec.refused(data):
            return obj
        return object_codec.decode(data, allow_pickle=allow_pickle)

    def allgather_object(self, obj: Any, *, allow_pickle: bool = False) -> List[Any]:
        """Return the list of all ranks' ``obj``, in rank order. Collective, blocking. As ``broadcast_object``."""
        joined, lengths = self._calls.joined(self._encoded("allgather_object", obj, allow_pickle))
        ends = np.cumsum(lengths)
        return [
            object_codec.decode(joined[end - length : end], allow_pickle=allow_pickle)
            for end, length in zip(ends, lengths)
        ]

    def _encoded(self, verb: str, obj: Any, allow_pickle: bool) -> np.ndarray:
        return object_codec.encode_or_why(
            obj, allow_pickle=allow_pickle, who=f"{verb}: rank {self._group.ranks[self.rank]}"
        )
