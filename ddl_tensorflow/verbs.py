"""The collectives of Horovod on TensorFlow's tensors: eagerly, in a ``tf.function``, in Keras, in a session of TF1.

Ranks may run them in any order, as TensorFlow does with the ops of a graph. One with a ``name`` runs when all ranks of
the process set have come to that name. In a graph, one without gets the name of its op, which is the same on all ranks
that build the same graph; eagerly, those without are paired in the order in which each rank calls them. Where ranks do
different things under one name, all of them get ``CollectiveMismatch`` and nothing is sent.

All are differentiable. ``device_dense`` and ``device_sparse`` are Horovod's, and not used: tensors are on the CPU.
``root_rank`` is a rank of the job.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

import ddl
from ddl import Average, ReduceOp
from ddl.operations import Operation, choose_op
from ddl.process_sets import ProcessSet
from ddl_tensorflow import _operations
from ddl_tensorflow._call import call, never
from ddl_tensorflow._where import Where, global_process_set
from ddl_tensorflow.compression import Compression

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "reducescatter"]

Array = np.ndarray[Any, Any]

#: Else AutoGraph rewrites, in a tf.function, all that a verb calls, also what runs in other threads later.
as_written = tf.autograph.experimental.do_not_convert


def op_name(name: Optional[str], verb: str, ignore_name_scope: bool = False) -> Optional[str]:
    """Return under which name an op is known to all ranks: see above; None: by the order of calls."""
    if tf.executing_eagerly():
        return name
    graph = tf.compat.v1.get_default_graph()
    if name is None:
        return str(graph.unique_name(f"ddl_{verb}"))
    scope = "" if ignore_name_scope else graph.get_name_scope()
    return f"{scope}/{name}" if scope else name


def _dense(tensor: Any, verb: str) -> tf.Tensor:
    if isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)):
        raise ddl.InvalidArgument(f"{verb}: a {type(tensor).__name__} is no dense tensor; pass tf.convert_to_tensor(…)")
    ddl.rank()  # InvalidState now, and not when a graph is run
    return tf.convert_to_tensor(tensor)


def in_place(
    tensors: Sequence[tf.Tensor], process_set: Optional[ProcessSet], run: Callable[[Where, List[Array]], None]
) -> List[tf.Tensor]:
    """Return tensors like ``tensors`` whose memory ``run`` gets with their contents, and writes to."""

    def function(arrays: List[Array], results: Optional[List[Array]]) -> List[Array]:
        assert results is not None
        for source, target in zip(arrays, results):
            if source.ctypes.data != target.ctypes.data:
                np.copyto(target, source)
        run(Where(process_set), results)
        return results

    return call(function, tensors)


# --- all-reduce ---


@as_written
def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine ``tensor`` over all ranks (default: average); return the result, the same bits on every rank.

    ``tensor``: any number type, or ``tf.IndexedSlices``, of which ranks may have different ones: the result has the
    rows of all, each divided by the number of ranks for an average. It is multiplied by ``prescale_factor`` before and
    the result by ``postscale_factor``; integers as float64, truncated. ``compression``: how it is written meanwhile.
    ``average`` is Horovod's old name of ``op``.

    Raises ``InvalidArgument`` for types that cannot be combined, ``InvalidState`` before ``init``;
    ``CollectiveMismatch``, ``PeerLost`` and the like come from where TensorFlow runs it.

    >>> mean = ddl_tensorflow.allreduce(tensor)
    """
    kind = choose_op(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, kind, prescale_factor, postscale_factor, name, process_set, ignore_name_scope)
    known = op_name(name, "allreduce", ignore_name_scope)
    small, context = compression.compress(_dense(tensor, "allreduce"))

    def run(where: Where, targets: List[Array]) -> None:
        where.run(_operations.allreduce(targets[0], kind, prescale_factor, postscale_factor), known)

    @tf.custom_gradient
    def reduced(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (result,) = in_place([x], process_set, run)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            back = None if known is None else f"{known}.gradient"
            return allreduce(
                upstream,
                op=kind,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                name=back,
                process_set=process_set,
                ignore_name_scope=True,
            )

        return result, gradient

    return compression.decompress(reduced(small), context)


def _allreduce_slices(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    name: Optional[str],
    process_set: ProcessSet,
    ignore_name_scope: bool,
) -> tf.IndexedSlices:
    """Gather the rows of all ranks; what uses them adds up those of one index."""
    if op not in (Average, ddl.Sum):
        raise ddl.InvalidArgument(f"allreduce: IndexedSlices can be averaged and summed, not {op!r}; make them dense")
    known = op_name(name, "allreduce", ignore_name_scope)
    parts = [None if known is None else f"{known}.{part}" for part in ("values", "indices")]
    values = allgather(slices.values, parts[0], True, process_set)
    indices = allgather(slices.indices, parts[1], True, process_set)
    factor = prescale * postscale / (process_set.size() if op == Average else 1)
    return tf.IndexedSlices(values * tf.cast(factor, values.dtype), indices, slices.dense_shape)


# --- broadcast ---


@as_written
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

    def run(where: Where, targets: List[Array]) -> None:
        where.run(_operations.broadcast(targets[0], where.index(root_rank), str(root_rank)), known)

    @tf.custom_gradient
    def sent(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (result,) = in_place([x], process_set, run)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            back = None if known is None else f"{known}.gradient"
            mean = allreduce(upstream, op=Average, name=back, process_set=process_set, ignore_name_scope=True)
            if ddl.rank() == root_rank:
                return mean
            return tf.where(never(), mean, tf.zeros_like(mean))  # else TensorFlow leaves out what the root waits for

        return result, gradient

    return sent(_dense(tensor, "broadcast"))


# --- all-gather, reduce-scatter, all-to-all: their sizes are known when they have run ---


def _made(
    tensors: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    process_set: Optional[ProcessSet],
    operation: Callable[[Where, List[Array]], Operation[Any]],
    name: Optional[str],
) -> List[tf.Tensor]:
    def function(arrays: List[Array], _: Any) -> Sequence[Array]:
        where = Where(process_set)
        made = where.run(operation(where, arrays), name)
        return made if isinstance(made, tuple) else [made]

    return call(function, tensors, dtypes)


def _with_rows(tensor: tf.Tensor, like: tf.Tensor, rows: Optional[int] = None) -> tf.Tensor:
    """Say what is known of its shape: it is that of ``like`` but for the number of rows."""
    if like.shape.rank is not None:
        tensor.set_shape([rows, *like.shape[1:]])
    return tensor


@as_written
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

    @tf.custom_gradient
    def gathered(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (rows,) = _made([x], [x.dtype], process_set, lambda _, arrays: _operations.allgather(arrays[0]), known)

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            back = "gradient" if known is None else f"{known}.gradient"
            unnamed = known is None
            mean = allreduce(
                upstream, op=Average, name=None if unnamed else back, process_set=process_set, ignore_name_scope=True
            )
            mine = tf.shape(x)[:1]
            counts = allgather(mine, None if unnamed else f"{back}.rows", True, process_set)
            return tf.split(mean, counts, num=process_set.size())[process_set.rank()]

        return _with_rows(rows, x), gradient

    return gathered(_dense(tensor, "allgather"))


@as_written
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
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
    known = op_name(name, "reducescatter", ignore_name_scope)
    small, context = compression.compress(_dense(tensor, "reducescatter"))

    @tf.custom_gradient
    def scattered(x: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        (rows,) = _made(
            [x],
            [x.dtype],
            process_set,
            lambda _, arrays: _operations.reducescatter(arrays[0], op, prescale_factor, postscale_factor),
            known,
        )

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            factor = prescale_factor * postscale_factor * (process_set.size() if op == ddl.Sum else 1)
            back = None if known is None else f"{known}.gradient"
            return allgather(upstream * tf.cast(factor, upstream.dtype), back, True, process_set)

        return _with_rows(rows, x), gradient

    return compression.decompress(scattered(small), context)


@as_written
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
    given = [] if splits is None else [tf.cast(tf.convert_to_tensor(splits), tf.int32)]

    def exchange(where: Where, arrays: List[Array]) -> Operation[Any]:
        return _operations.alltoall(arrays[0], arrays[1].tolist() if len(arrays) > 1 else None, where.size)

    @tf.custom_gradient
    def exchanged(x: tf.Tensor) -> Tuple[Any, Callable[..., tf.Tensor]]:
        rows, counts = _made([x, *given], [x.dtype, tf.int32], process_set, exchange, known)

        def gradient(upstream: tf.Tensor, _: Any = None) -> tf.Tensor:
            back = None if known is None else f"{known}.gradient"
            return alltoall(upstream, counts, back, True, process_set)[0]

        counts.set_shape([process_set.size()])
        return (_with_rows(rows, x), counts), gradient

    rows, counts = exchanged(_dense(tensor, "alltoall"))
    return rows if splits is None else (rows, counts)


# --- barrier ---


@as_written
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Return when every rank has called it; in a graph, an op that ends then, for ``tf.control_dependencies``."""
    known = op_name(None, "barrier")

    def wait() -> np.int32:
        Where(process_set).run(_operations.barrier(), known)
        return np.int32(0)

    ddl.rank()
    if tf.executing_eagerly():
        wait()
        return None
    return tf.numpy_function(wait, [], tf.int32)  # stateful: TensorFlow runs it though nobody uses the result
