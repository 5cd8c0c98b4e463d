"""``Communicator``: a group of ranks and the collectives on it.

Every method that names ranks means ranks *of this communicator*. All ranks of a communicator make the same collective
calls in the same order, from one thread at a time. Arrays are numpy arrays, or anything on the CPU that speaks DLPack;
arrays from ``ddl.empty`` move fastest. After a ``CommunicatorError`` the contents of the arrays under way are
undefined, and every later call raises the same error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Tuple, TypeVar

import numpy as np

from ddl import _core, objects
from ddl.calls import Call, Calls, as_array, given
from ddl.errors import InvalidArgument
from ddl.group import Group
from ddl.plan.ir import Collective
from ddl.reduce_op import Average, ReduceOp
from ddl.splitting import part_of
from ddl.topology import Topology
from ddl.tuning.select import Lines

__all__ = ["Communicator", "Metrics", "PreparedOperation", "Work"]

Work = _core.Work
PreparedOperation = _core.PreparedOperation
T = TypeVar("T")

_LONGEST_TIMEOUT = 1e9  #: seconds


@dataclass(frozen=True)
class Metrics:
    """What a communicator has done on this rank since it was made. All but ``late`` only grow.

    ``operations``: collectives that have ended; a call that exchanges sizes first is two. ``sent_messages``,
    ``sent_bytes``: see ``Communicator.traffic``. ``waited_seconds``: how long collectives were under way while nothing
    moved, because other ranks or the network were not there yet (but for waits of some 2 us or less); where several
    overlap, it may exceed the time that has passed. ``late``: the ranks that come late to operations now, each with
    its seconds per operation, on average. Found out on all ranks of the job together, over some seconds, and the same
    on all within a moment.
    """

    operations: int
    sent_messages: int
    sent_bytes: int
    waited_seconds: float
    late: Mapping[int, float]


class Communicator:
    """A group of ranks. Made by ``ddl.init`` (the world) and by ``split``.

    Thread-safety: one thread submits at a time; any thread may wait for a ``Work``.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._core = group.core
        self._calls = Calls(group.core, group.rank, group.size)
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
        array = as_array(x)
        output = np.empty_like(array)
        self._core.allreduce(array, output, op)
        return output

    def allreduce_(self, x: T, *, op: ReduceOp = Average) -> T:
        """As ``allreduce``, in place: ``x`` must be contiguous and writable. Returns ``x``."""
        self._core.allreduce(given("allreduce_", x), x, op)
        return x

    def prepare_allreduce(
        self, x: Any, *, op: ReduceOp = Average, name: str = "", residual: Any = None
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
        return self._core.prepare(Collective.ALLREDUCE, given("prepare_allreduce", x), op, name, residual)

    def allreduce_async(self, x: Any, *, op: ReduceOp = Average, name: str = "") -> Work:
        """As ``allreduce``, without blocking: returns a ``Work`` whose ``wait()`` returns the result.

        ``x`` must not be written before the work is done. ``name`` appears in errors.
        """
        return self._calls.start(self._calls.allreduce(x, op), name)

    def allreduce_async_(self, x: Any, *, op: ReduceOp = Average, name: str = "", residual: Any = None) -> Work:
        """As ``allreduce_``, without blocking.

        ``residual`` (error feedback): float32, as many as ``x`` has, contiguous and writable, zeros at first. On a
        communicator whose ``wire`` is "int8", what is lost of ``x`` on this rank when it is written shorter stays
        there, and is added to it the next time; after an error it is undefined, as ``x``. Elsewhere it is neither read
        nor written. Raises ``InvalidArgument`` for any other array.
        """
        return self._calls.start(self._calls.allreduce_(x, op, residual), name)

    def broadcast(self, x: Any, *, root: int = 0) -> np.ndarray:
        """Return a new array with the contents of ``x`` of rank ``root``. Collective, blocking.

        ``x`` has the same shape and type on every rank; only the root's contents matter.
        """
        return self._calls.run(self._calls.broadcast(x, root))

    def broadcast_(self, x: T, *, root: int = 0) -> T:
        """As ``broadcast``, in place: overwrites ``x`` on all ranks but the root. Returns ``x``."""
        self._calls.check_rank("broadcast_", "root", root)
        mine = given("broadcast_", x) if root == self.rank else None
        self._core.run_alike(Collective.BROADCAST, mine, given("broadcast_", x), 0, root)
        return x

    def broadcast_async(self, x: Any, *, root: int = 0) -> Work:
        """As ``broadcast``, without blocking."""
        return self._calls.start(self._calls.broadcast(x, root))

    def broadcast_async_(self, x: Any, *, root: int = 0) -> Work:
        """As ``broadcast_``, without blocking."""
        return self._calls.start(self._calls.broadcast_(x, root))

    # --- reduce-scatter, all-gather, all-to-all ---

    def reducescatter(self, x: Any, *, op: ReduceOp = Average, out: Any = None) -> Any:
        """Combine ``x`` over all ranks and return this rank's share of the rows (first dimension).

        Collective, blocking. ``x`` has the same shape and type on every rank. Where the rows do not divide by the
        number of ranks, the first ranks get one more. ``out``, given on all ranks or on none: a contiguous array for
        the result, of 1/size of the elements of ``x``; it is returned.
        """
        if out is not None:
            return self._calls.into(Collective.REDUCESCATTER, x, out, op)
        return self._calls.run(self._calls.reducescatter(x, op))

    def reducescatter_async(self, x: Any, *, op: ReduceOp = Average) -> Work:
        """As ``reducescatter``, without blocking."""
        return self._calls.start(self._calls.reducescatter(x, op))

    def allgather(self, x: Any, *, out: Any = None) -> Any:
        """Return the arrays of all ranks, one after the other along the first dimension, in rank order.

        Collective, blocking. The first dimension may differ by rank (also be 0); type and other dimensions not.
        Raises ``InvalidArgument`` on all ranks, with the communicator unharmed, if they do. ``out``, given on all
        ranks or on none: a contiguous array for the result, which is returned; all ranks then pass as many elements
        and no sizes are exchanged.
        """
        if out is not None:
            return self._calls.into(Collective.ALLGATHER, x, out)
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
            return self._calls.into(Collective.ALLTOALL, x, out)
        return self._calls.run(self._calls.alltoall(x, splits))

    def alltoall_async(self, x: Any, splits: Optional[Sequence[int]] = None) -> Work:
        """As ``alltoall``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._calls.start(self._calls.alltoall(x, splits))

    # --- to and from one rank ---

    def reduce(self, x: Any, *, root: int = 0, op: ReduceOp = Average) -> Optional[np.ndarray]:
        """Combine ``x`` over all ranks; the result is returned on ``root``, None elsewhere. Collective, blocking."""
        return self._calls.run(self._calls.reduce(x, root, op))

    def reduce_async(self, x: Any, *, root: int = 0, op: ReduceOp = Average) -> Work:
        """As ``reduce``, without blocking."""
        return self._calls.start(self._calls.reduce(x, root, op))

    def gather(self, x: Any, *, root: int = 0) -> Optional[np.ndarray]:
        """Return on ``root`` the arrays of all ranks along the first dimension, None elsewhere. Collective, blocking.

        The first dimension may differ by rank, as in ``allgather``.
        """
        return self._calls.run(self._calls.gather(x, root))

    def gather_async(self, x: Any, *, root: int = 0) -> Work:
        """As ``gather``; sizes are exchanged before it returns, the arrays afterwards."""
        return self._calls.start(self._calls.gather(x, root))

    def scatter(self, x: Any = None, *, root: int = 0) -> np.ndarray:
        """Return this rank's share of the rows of the root's ``x``. Collective, blocking.

        ``x`` matters on ``root`` only. Where the rows do not divide, the first ranks get one more.
        """
        return self._calls.run(self._calls.scatter(x, root))

    def scatter_async(self, x: Any = None, *, root: int = 0) -> Work:
        """As ``scatter``; the shape is exchanged before it returns, the rows afterwards."""
        return self._calls.start(self._calls.scatter(x, root))

    def _attempt(self, collective: Collective, x: Any, out: Any, op: int = 0, root: int = 0) -> Optional[Work]:
        """Make a blocking call whose arrays say all of the sizes, for a caller that must not sleep: see ``Negotiator``.

        Where it would sleep, return what goes on instead; the arrays must live until that has ended.
        """
        return self._core.attempt(collective, x, out, op, root)

    # --- barrier, send, recv ---

    def barrier(self) -> None:
        """Return when every rank has called it. Collective, blocking."""
        self._core.run_alike(Collective.BARRIER, None, None, 0, 0)

    def barrier_async(self) -> Work:
        """As ``barrier``, without blocking."""
        return self._calls.start(Call(Collective.BARRIER, None, None, None))

    def send(self, x: Any, dst: int) -> None:
        """Send ``x`` to rank ``dst``, which calls ``recv``. Blocks until ``x`` may be written again. Not collective.

        Messages between two ranks arrive in the order of the calls.
        """
        self._calls.check_peer("send", dst)
        self._calls.run(Call(Collective.SEND, given("send", x), None, None, root=dst))

    def send_async(self, x: Any, dst: int) -> Work:
        """As ``send``, without blocking."""
        self._calls.check_peer("send", dst)
        return self._calls.start(Call(Collective.SEND, given("send", x), None, None, root=dst))

    def recv(self, x: T, src: int) -> T:
        """Receive into ``x`` what rank ``src`` sends: the same number of elements of the same type. Returns ``x``.

        Not collective, blocking.
        """
        self._calls.check_peer("recv", src)
        return self._calls.run(Call(Collective.RECV, None, given("recv", x), x, root=src))

    def recv_async(self, x: Any, src: int) -> Work:
        """As ``recv``, without blocking."""
        self._calls.check_peer("recv", src)
        return self._calls.start(Call(Collective.RECV, None, given("recv", x), x, root=src))

    # --- objects ---

    def broadcast_object(self, obj: Any = None, *, root: int = 0, allow_pickle: bool = False) -> Any:
        """Return the root's ``obj`` on every rank. Collective, blocking.

        Plain data (None, bool, int, float, complex, str, bytes, list, tuple, dict, set, numpy arrays) needs nothing;
        anything else needs ``allow_pickle=True`` on every rank, which trusts all ranks to run code on all ranks.
        Raises ``InvalidArgument``, on all ranks, for an object that cannot be sent.
        """
        self._calls.check_rank("broadcast_object", "root", root)
        data = self._encoded("broadcast_object", obj, allow_pickle) if self.rank == root else np.empty(0, np.uint8)
        length = np.array([data.size], dtype=np.int64)
        self._calls.run(self._calls.broadcast_(length, root, sizes_for=Collective.BROADCAST))
        if self.rank != root:
            data = np.empty(int(length[0]), np.uint8)
        self._calls.run(self._calls.broadcast_(data, root))
        if self.rank == root and not objects.refused(data):
            return obj
        return objects.decode(data, allow_pickle=allow_pickle)

    def allgather_object(self, obj: Any, *, allow_pickle: bool = False) -> List[Any]:
        """Return the list of all ranks' ``obj``, in rank order. Collective, blocking. As ``broadcast_object``."""
        joined, lengths = self._calls.joined(self._encoded("allgather_object", obj, allow_pickle))
        ends = np.cumsum(lengths)
        return [
            objects.decode(joined[end - length : end], allow_pickle=allow_pickle) for end, length in zip(ends, lengths)
        ]

    def _encoded(self, verb: str, obj: Any, allow_pickle: bool) -> np.ndarray:
        return objects.encode_or_why(obj, allow_pickle=allow_pickle, who=f"{verb}: rank {self._group.ranks[self.rank]}")

    # --- the communicator itself ---

    def split(
        self, color: Optional[int], key: Optional[int] = None, *, deterministic: bool = False
    ) -> Optional[Communicator]:
        """Return a new communicator of the ranks that passed the same ``color``; None for those that passed None.

        Collective over this communicator, blocking. Ranks are ordered by ``key`` (default: their rank here).
        ``deterministic``, the same for all ranks of a color: sums depend on the number of ranks only, bit for bit
        (docs/deterministic.md); parts of a deterministic communicator are it anyway. Raises ``InvalidArgument`` on the
        ranks of a color that differ in it, ``ResourceError`` on all ranks of a color of which one lacks memory, say.
        """
        return self._split(color, key, deterministic=deterministic)

    def _split(
        self,
        color: Optional[int],
        key: Optional[int] = None,
        tuned: Optional[Mapping[Collective, Lines]] = None,
        racks: Sequence[Sequence[int]] = (),
        deterministic: bool = False,
        wire: Optional[str] = None,
    ) -> Optional[Communicator]:
        """As ``split``; the new communicator chooses algorithms by ``tuned`` and is laid out by ``racks``.

        ``wire``, alike on all its ranks: a key of ``environ.WIRE_CODECS``, or "float32"; by default, as here.
        """
        if color is not None and not isinstance(color, (int, np.integer)):
            raise InvalidArgument(f"split: color={color!r} is neither a number nor None")
        part = part_of(self._group, self.allgather_object, color, key, tuned, racks, deterministic, wire)
        return None if part is None else Communicator(part)

    def subset(self, ranks: Sequence[int], *, timeout: Optional[float] = None) -> Communicator:
        """Return a new communicator of ``ranks``, in that order; they become its ranks 0, 1, ...

        Collective over these ranks only, which all pass the same ones; blocking. ``timeout``: seconds that one of its
        operations may take (default: DDL_TIMEOUT). Raises ``InvalidArgument`` if this rank is none of them, and
        ``RendezvousError`` if one of them does not come in time (DDL_START_TIMEOUT).
        """
        given_ranks = [int(rank) for rank in ranks]
        if len(set(given_ranks)) < len(given_ranks) or self.rank not in given_ranks:
            raise InvalidArgument(f"subset: rank {self.rank} must be among {given_ranks}, and each of them once")
        for rank in given_ranks:
            self._calls.check_rank("subset", "a member", rank)
        return Communicator(self._group.subset(given_ranks, timeout))

    def set_timeout(self, seconds: float) -> None:
        """Let operations that this rank submits from now on take so long (at first: DDL_TIMEOUT). Not collective.

        Also those that were prepared before. Raises ``InvalidArgument`` unless ``seconds`` is above 0 and below 1e9.
        """
        if not 0 < seconds < _LONGEST_TIMEOUT:
            raise InvalidArgument(f"set_timeout: {seconds!r} must be a number of seconds above 0")
        self._core.set_timeout(seconds)

    @property
    def timeout(self) -> float:
        """How many seconds an operation that this rank submits now may take."""
        return self._core.timeout

    @property
    def topology(self) -> Topology:
        """How its ranks are laid out."""
        return self._group.topology

    @property
    def homogeneous(self) -> bool:
        """Whether the job has the same number of ranks on all hosts: on all that share memory."""
        return len({len(host) for host in self._group.job.hosts}) == 1

    @property
    def who(self) -> str:
        """How its errors begin: ``[rank 1/4 host b]``, and which rank of it that is if it has only some of them."""
        return self._group.who

    def close(self) -> None:
        """Close a communicator that ``split`` or ``subset`` made; what is under way fails with ``Aborted``. Idempotent.

        Not collective. The world communicator is closed by ``shutdown``.
        """
        self._group.close()

    def abort(self, reason: str = "") -> None:
        """Break the communicator on all ranks: everything under way and every later call raises ``Aborted``."""
        self._core.fail("Aborted", self.rank, f"abort() was called: {reason or 'no reason given'}", True)

    def traffic(self) -> Tuple[int, int]:
        """Return how many messages with data, and how many bytes, this rank has sent through transports so far.

        Not collective, does not block. What ranks read directly from one another's memory is no message.
        """
        return self._core.traffic()

    @property
    def wire(self) -> str:
        """What large all-reduces of float32 are written as between hosts: "float32", "bf16", "fp16" or "int8".

        DDL_WIRE says so for a whole job, all but the last; ``compression`` of an adapter for its gradients.
        """
        return "float32" if self.deterministic else self._group.wire

    @property
    def deterministic(self) -> bool:
        """Whether sums depend on the number of ranks only, bit for bit, and not on hosts, sizes or buckets."""
        return self._group.deterministic

    def metrics(self) -> Metrics:
        """Return what this communicator has done so far, and which of its ranks come late: see ``Metrics``.

        Not collective, does not block; any thread may call it, a few times a second.

        >>> ddl.metrics().late
        {3: 0.0121}
        """
        operations, waited, _ = self._core.collectives()
        return Metrics(operations, *self.traffic(), waited, self._group.late())
