"""The collectives of Horovod on TensorFlow's tensors: eagerly, in a ``tf.function``, in Keras, in a session of TF1.

Ranks may run them in any order, as TensorFlow does with the ops of a graph. One with a ``name`` runs when all ranks of
the process set have come to that name. In a graph, one without gets the name of its op, which is the same on all ranks
that build the same graph (how: _names.py); eagerly, those without are paired in the order in which each rank calls
them. Where ranks do different things under one name, all of them get ``CollectiveMismatch`` and nothing is sent.

TensorFlow leaves ops out of a function if their result is not used. If only one rank uses a result, that rank waits for
the others until the deadline. If the iterations of a loop do not need one another, TensorFlow runs several at once: up
to ``ITERATIONS`` (``parallel_iterations`` of ``tf.while_loop`` and ``tf.map_fn``) are told apart here. Do not use these
verbs in functions of a ``tf.data`` pipeline, which run for several elements at once, and ahead of time.

All are differentiable. ``device_dense`` and ``device_sparse`` are Horovod's, and not used: tensors are on the CPU.
``root_rank`` is a rank of the job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

import ddl
from ddl import Average, ReduceOp
from ddl.adapter.operations import Operation, Waitable, choose_op
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.errors import NotSupported
from ddl.reduce_op import OpLike, parse_op
from ddl_tensorflow import _operations
from ddl_tensorflow._call import call, never
from ddl_tensorflow._differentiable import differentiable
from ddl_tensorflow._names import gradient_name, op_name, part_name
from ddl_tensorflow._scaling import scaled, sums_of_rows
from ddl_tensorflow._where import Where, global_process_set
from ddl_tensorflow.compression import Compression, casting

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "reducescatter"]

Array = np.ndarray[Any, Any]

#: Else AutoGraph rewrites, in a tf.function, all that a verb calls, also what runs in other threads later.
as_written = tf.autograph.experimental.do_not_convert


def dense(tensor: Any, verb: str) -> tf.Tensor:
    """Return as a tensor what a verb was given: a tensor, a variable, an array, a number, a list of these."""
    if isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)):
        raise ddl.InvalidArgument(f"{verb}: a {type(tensor).__name__} is no dense tensor; pass tf.convert_to_tensor(…)")
    ddl.rank()  # InvalidState now, and not when a graph is run
    try:
        result = tf.convert_to_tensor(tensor)
    except (TypeError, ValueError) as error:
        raise ddl.InvalidArgument(f"{verb}: a {type(tensor).__name__} is no tensor: {error}") from error
    if result.dtype.base_dtype in (tf.string, tf.resource, tf.variant):
        raise ddl.InvalidArgument(
            f"{verb}: a tensor of type {result.dtype.base_dtype.name} has no numbers to send; Python objects go by "
            "broadcast_object and allgather_object"
        )
    is_reference = result.dtype != result.dtype.base_dtype  # to a variable of TF1
    return tf.identity(result) if is_reference else result


def in_place(
    tensors: Sequence[tf.Tensor],
    process_set: Optional[ProcessSet],
    operation: Callable[[Where, List[Array]], Operation[Any]],
    name: Optional[str],
    after: Optional[tf.Tensor] = None,
) -> List[tf.Tensor]:
    """Return tensors like ``tensors`` whose memory an operation gets with their contents, and writes to."""

    def function(arrays: List[Array], results: Optional[List[Array]], sleeps: bool) -> Waitable:
        assert results is not None
        for source, target in zip(arrays, results):
            if source is not target:
                np.copyto(target, source)
        where = Where(process_set)
        return where.make(operation(where, results), name, sleeps)

    return call(function, tensors, after=after)


# --- all-reduce ---


@as_written
@naming_rank
def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine ``tensor`` over all ranks (default: average); return the result, the same bits on every rank.

    ``tensor``: any number type, or ``tf.IndexedSlices``, of which ranks may have different ones: the result has the
    rows of all, each divided by the number of ranks for an average. It is multiplied by ``prescale_factor`` before and
    the result by ``postscale_factor``; integers as float64, truncated. ``op``: ``Average``, ``Sum``, ``Min``, ``Max``,
    ``Product``, ``Adasum``, or the name of one, "sum". ``compression``: how it is written meanwhile: one of
    ``Compression``, or a ``Compressor`` of your own. ``average`` is Horovod's old name of ``op``.

    Raises ``InvalidArgument`` for types that cannot be combined, ``InvalidState`` before ``init``;
    ``CollectiveMismatch``, ``PeerLost`` and the like come from where TensorFlow runs it.

    >>> mean = ddl_tensorflow.allreduce(tensor)
    """
    kind = choose_op(average, op, stacklevel=5)
    known = op_name(name, "allreduce", ignore_name_scope)
    if isinstance(tensor, tf.IndexedSlices):
        return slices_allreduced(tensor, kind, prescale_factor, postscale_factor, known, process_set)
    cast = casting(compression)
    small, context = cast.compress(dense(tensor, "allreduce"))
    reduced = allreduced(small, kind, prescale_factor, postscale_factor, known, process_set)
    return cast.decompress(reduced, context)


def allreduced(
    tensor: tf.Tensor, op: ReduceOp, prescale: float, postscale: float, known: Optional[str], process_set: ProcessSet
) -> tf.Tensor:
    """All-reduce under a name of ``_names``."""

    def mean(_: Where, targets: List[Array]) -> Operation[None]:
        return _operations.allreduce(targets[0], op, prescale, postscale)

    @differentiable
    def reduced(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (result,) = in_place([x], process_set, mean, known)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return allreduced(upstream, op, prescale, postscale, gradient_name(known), process_set)

        return result, gradient

    return reduced(tensor)


def slices_allreduced(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    known: Optional[str],
    process_set: ProcessSet,
    gather: Optional[Callable[[tf.Tensor, Optional[str], ProcessSet], tf.Tensor]] = None,
) -> tf.IndexedSlices:
    """Gather the rows of all ranks; what uses them adds up those of one index.

    Integers are added up here, before they are divided: to truncate a part of a sum is to lose it. ``gather``: what
    takes the place of ``gathered``.
    """
    gather = gathered if gather is None else gather
    if op not in (Average, ddl.Sum):
        raise NotSupported(f"allreduce: IndexedSlices can be averaged and summed, not {op!r}; make them dense")
    values = gather(dense(slices.values, "allreduce"), part_name(known, "values"), process_set)
    indices = gather(dense(slices.indices, "allreduce"), part_name(known, "indices"), process_set)
    rows = tf.IndexedSlices(values, indices, slices.dense_shape)
    factor, divisor = prescale * postscale, process_set.size() if op == Average else 1
    if values.dtype.is_integer and not factor == divisor == 1:
        rows = sums_of_rows(rows)
    return tf.IndexedSlices(scaled(rows.values, factor, divisor), rows.indices, slices.dense_shape)


# --- broadcast ---


@as_written
@naming_rank
def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return ``tensor`` of ``root_rank``; shapes and types are equal, any type but strings.

    The gradient is the average of all ranks' gradients on ``root_rank``, zero elsewhere.
    """
    known = op_name(name, "broadcast", ignore_name_scope)

    def sending(where: Where, targets: List[Array]) -> Operation[None]:
        return _operations.broadcast(targets[0], where.index(root_rank), str(root_rank))

    @differentiable
    def sent(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (result,) = in_place([x], process_set, sending, known)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            mean = allreduced(upstream, Average, 1.0, 1.0, gradient_name(known), process_set)
            if ddl.rank() == root_rank:
                return mean
            return tf.where(never(), mean, tf.zeros_like(mean))  # else TensorFlow leaves out what the root waits for

        return result, gradient

    return sent(dense(tensor, "broadcast"))


# --- all-gather, reduce-scatter, all-to-all: their sizes are known when they have run ---


def made_by(
    tensors: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    process_set: Optional[ProcessSet],
    operation: Callable[[Where, List[Array]], Operation[Any]],
    name: Optional[str],
    after: Optional[tf.Tensor] = None,
) -> List[tf.Tensor]:
    """Return tensors of ``dtypes`` that an operation on the contents of ``tensors`` makes."""

    def function(arrays: List[Array], _: Any, sleeps: bool) -> Waitable:
        where = Where(process_set)
        return where.make(operation(where, arrays), name, sleeps)

    return call(function, tensors, dtypes, after=after)


def with_rows(tensor: tf.Tensor, like: tf.Tensor, rows: Optional[int] = None) -> tf.Tensor:
    """Say what is known of its shape: it is that of ``like`` but for the number of rows."""
    if like.shape.rank is not None:
        tensor.set_shape([rows, *like.shape[1:]])
    return tensor


@as_written
@naming_rank
def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the tensors of all ranks along the first dimension, which may differ by rank.

    The gradient is the average of all ranks' gradients of this rank's rows (as in Horovod).
    """
    return gathered(dense(tensor, "allgather"), op_name(name, "allgather", ignore_name_scope), process_set)


def gathered(tensor: tf.Tensor, known: Optional[str], process_set: ProcessSet) -> tf.Tensor:
    """All-gather under a name of ``_names``."""

    @differentiable
    def run(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (rows,) = made_by([x], [x.dtype], process_set, lambda _, arrays: _operations.allgather(arrays[0]), known)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            back = gradient_name(known)
            mean = allreduced(upstream, Average, 1.0, 1.0, back, process_set)
            return own_rows(mean, gathered(tf.shape(x)[:1], part_name(back, "rows"), process_set), process_set)

        return with_rows(rows, x), gradient

    return run(tensor)


def own_rows(tensor: tf.Tensor, counts: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    """Return this rank's rows of a tensor that has ``counts[r]`` of each rank r."""
    return tf.split(tensor, counts, num=process_set.size())[process_set.rank()]


def scattered_by(op: OpLike) -> ReduceOp:
    """Return the operator of a reduce-scatter. Raises ``NotSupported``, a ``RuntimeError``, if it cannot have that."""
    kind = parse_op(op, "reducescatter")
    if kind == ddl.Adasum:
        raise NotSupported(
            "reducescatter: op=ddl.Adasum is there for all-reduces only; use allreduce, and take your rows"
        )
    return kind


@as_written
@naming_rank
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: OpLike = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Combine ``tensor`` over all ranks; return this rank's share of the rows.

    Where the rows do not divide by the number of ranks, the first ranks get one more. The gradient is all ranks'
    gradients of their rows; for a sum, times the number of ranks (as in Horovod).
    """
    kind = scattered_by(op)
    known = op_name(name, "reducescatter", ignore_name_scope)
    cast = casting(compression)
    small, context = cast.compress(dense(tensor, "reducescatter"))

    @differentiable
    def scattered(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (rows,) = made_by(
            [x],
            [x.dtype],
            process_set,
            lambda _, arrays: _operations.reducescatter(arrays[0], kind, prescale_factor, postscale_factor),
            known,
        )

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            factor = prescale_factor * postscale_factor * (process_set.size() if kind == ddl.Sum else 1)
            return gathered(scaled(upstream, factor), gradient_name(known), process_set)

        return with_rows(rows, x), gradient

    return cast.decompress(scattered(small), context)


@as_written
@naming_rank
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[r]`` rows (default: an equal share) to each rank ``r``; return the rows received.

    With ``splits`` (a tensor of integers, or a list), the result is the pair (rows, received splits: int32).
    """
    known = op_name(name, "alltoall", ignore_name_scope)
    given = None if splits is None else tf.cast(dense(splits, "alltoall"), tf.int32)
    rows, counts = _exchanged(dense(tensor, "alltoall"), given, known, process_set)
    return rows if splits is None else (rows, counts)


def _exchanged(
    tensor: tf.Tensor, splits: Optional[tf.Tensor], known: Optional[str], process_set: ProcessSet
) -> Tuple[tf.Tensor, tf.Tensor]:
    given = [] if splits is None else [splits]

    def exchange(where: Where, arrays: List[Array]) -> Operation[Any]:
        return _operations.alltoall(arrays[0], arrays[1].tolist() if len(arrays) > 1 else None, where.size)

    @differentiable
    def run(x: tf.Tensor) -> Tuple[Any, Callable[..., tf.Tensor]]:
        rows, counts = made_by([x, *given], [x.dtype, tf.int32], process_set, exchange, known)

        def gradient(upstream: tf.Tensor, _: Any = None) -> tf.Tensor:
            return _exchanged(upstream, counts, gradient_name(known), process_set)[0]

        counts.set_shape([process_set.size()])
        return (with_rows(rows, x), counts), gradient

    rows, counts = run(tensor)
    return rows, counts


# --- barrier ---


@as_written
@naming_rank
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Return when every rank has called it; in a graph, an op that ends then, for ``tf.control_dependencies``."""
    ddl.rank()
    known = op_name(None, "barrier")

    def wait(_: List[Array], __: Any, sleeps: bool) -> Waitable:
        barrier: Operation[Any] = _operations.barrier()
        return Where(process_set).make(replace(barrier, finish=lambda _: np.zeros((), np.int32)), known, sleeps)

    (ended,) = call(wait, [], [tf.int32], always=True)
    return None if tf.executing_eagerly() else ended.op
