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
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import tensorflow as tf

import ddl
from ddl import Average
from ddl.adapter.operations import Operation, Waitable, choose_op
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike
from ddl_tensorflow import _operations
from ddl_tensorflow._call import call, never
from ddl_tensorflow._collectives import (
    Array,
    OperationKey,
    allreduced,
    as_written,
    cast_with,
    dense,
    gathered,
    in_place,
    made_by,
    scattered,
    scattered_by,
    slices_allreduced,
    with_rows,
)
from ddl_tensorflow._differentiable import differentiable
from ddl_tensorflow._names import gradient_name, op_name
from ddl_tensorflow._where import Where, global_process_set
from ddl_tensorflow.compression import Compression

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "reducescatter"]

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

    def run(tensors: List[tf.Tensor]) -> List[tf.Tensor]:
        return allreduced(
            tensors, kind, prescale_factor, postscale_factor, OperationKey(known, process_set, alone=True)
        )

    return cast_with(compression, [tensor], "allreduce", run)[0]


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
            key = OperationKey(gradient_name(known), process_set, alone=True)
            (mean,) = allreduced([upstream], Average, 1.0, 1.0, key)
            if ddl.rank() == root_rank:
                return mean
            return tf.where(never(), mean, tf.zeros_like(mean))  # else TensorFlow leaves out what the root waits for

        return result, gradient

    return sent(dense(tensor, "broadcast"))


# --- all-gather, reduce-scatter, all-to-all: their sizes are known when they have run ---


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
    known = op_name(name, "allgather", ignore_name_scope)
    return gathered([dense(tensor, "allgather")], OperationKey(known, process_set, alone=True))[0]


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

    def run(tensors: List[tf.Tensor]) -> List[tf.Tensor]:
        return scattered(tensors, kind, prescale_factor, postscale_factor, OperationKey(known, process_set, alone=True))

    return cast_with(compression, [tensor], "reducescatter", run)[0]


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
