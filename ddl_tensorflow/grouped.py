"""Collectives on several tensors at once: they run when all ranks have come to all of them. As in Horovod.

They do for each of the tensors what the verbs of the same names in ``verbs.py`` do. Tensors of one call may differ in
shape and type. If ranks pass different numbers, shapes or types, all of them raise ``CollectiveMismatch``. Names,
arguments, types and errors are those of ``verbs.py``, too.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import tensorflow as tf

import ddl
from ddl import Average, ReduceOp
from ddl.adapter.operations import Operation, choose_op, grouped
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike
from ddl_tensorflow import _operations
from ddl_tensorflow._differentiable import differentiable
from ddl_tensorflow._names import gradient_name, op_name, part_name
from ddl_tensorflow._scaling import scaled
from ddl_tensorflow._where import Where, global_process_set
from ddl_tensorflow.compression import Compression, casting
from ddl_tensorflow.verbs import (
    Array,
    as_written,
    dense,
    in_place,
    made_by,
    own_rows,
    scattered_by,
    slices_allreduced,
    with_rows,
)

__all__ = ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter"]

Tensors = Sequence[tf.Tensor]


def _compress(tensors: Sequence[Any], compression: Any, verb: str) -> Tuple[List[tf.Tensor], List[Any]]:
    cast = casting(compression)
    pairs = [cast.compress(dense(tensor, verb)) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def _decompress(tensors: Tensors, contexts: Sequence[Any], compression: Any) -> List[tf.Tensor]:
    cast = casting(compression)
    return [cast.decompress(tensor, context) for tensor, context in zip(tensors, contexts)]


def _differentiable(
    tensors: Tensors, run: Callable[[Tensors], List[tf.Tensor]], back: Callable[[Tensors, List[int]], List[tf.Tensor]]
) -> List[tf.Tensor]:
    """Return ``run(tensors)``. Their gradients: ``back`` of the results' gradients, for tensors of these numbers."""
    if not tensors:
        return []
    smooth = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating or tensor.dtype.is_complex]

    @differentiable
    def forward(*inputs: tf.Tensor) -> Tuple[List[tf.Tensor], Callable[..., List[Optional[tf.Tensor]]]]:
        def gradient(*upstream: tf.Tensor) -> List[Optional[tf.Tensor]]:
            gradients: List[Optional[tf.Tensor]] = [None] * len(inputs)
            for i, own in zip(smooth, back([upstream[i] for i in smooth], smooth)):
                gradients[i] = own
            return gradients

        return run(inputs), gradient

    return list(forward(*tensors))


@as_written
@naming_rank
def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> List[Any]:
    """All-reduce each of ``tensors`` and return the results.

    Of ``tf.IndexedSlices``, which may be among them, each is an operation of its own.
    """
    kind = choose_op(average, op, stacklevel=5)
    known = op_name(name, "grouped_allreduce", ignore_name_scope)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    others = [tensor for i, tensor in enumerate(tensors) if i not in sparse]
    small, contexts = _compress(others, compression, "grouped_allreduce")
    averages = _allreduced(small, kind, prescale_factor, postscale_factor, known, process_set)
    rest = iter(_decompress(averages, contexts, compression))
    return [
        slices_allreduced(tensor, kind, prescale_factor, postscale_factor, part_name(known, str(i)), process_set)
        if i in sparse
        else next(rest)
        for i, tensor in enumerate(tensors)
    ]


def _allreduced(
    tensors: Tensors, op: ReduceOp, prescale: float, postscale: float, known: Optional[str], process_set: ProcessSet
) -> List[tf.Tensor]:
    def together(_: Where, targets: List[Array]) -> Operation[Any]:
        return grouped([_operations.allreduce(target, op, prescale, postscale) for target in targets], "allreduce")

    return _differentiable(
        tensors,
        lambda inputs: in_place(inputs, process_set, together, known),
        lambda inputs, _: _allreduced(inputs, op, prescale, postscale, gradient_name(known), process_set),
    )


@as_written
@naming_rank
def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> List[tf.Tensor]:
    """All-gather each of ``tensors`` along its first dimension, which may differ by rank, and return the results."""
    known = op_name(name, "grouped_allgather", ignore_name_scope)
    return _gathered([dense(tensor, "grouped_allgather") for tensor in tensors], known, process_set)


def _gathered(tensors: Tensors, known: Optional[str], process_set: ProcessSet) -> List[tf.Tensor]:
    def back(upstream: Tensors, which: List[int]) -> List[tf.Tensor]:
        name = gradient_name(known)
        means = _allreduced(upstream, Average, 1.0, 1.0, name, process_set)
        counts = _gathered([tf.shape(tensors[i])[:1] for i in which], part_name(name, "rows"), process_set)
        return [own_rows(mean, count, process_set) for mean, count in zip(means, counts)]

    def together(_: Where, arrays: List[Array]) -> Any:
        return grouped([_operations.allgather(array) for array in arrays], "allgather")

    def run(inputs: Tensors) -> List[tf.Tensor]:
        rows = made_by(inputs, [tensor.dtype for tensor in inputs], process_set, together, known)
        return [with_rows(result, like) for result, like in zip(rows, inputs)]

    return _differentiable(tensors, run, back)


@as_written
@naming_rank
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
) -> List[tf.Tensor]:
    """Combine each of ``tensors`` over all ranks; return this rank's share of the rows of each."""
    kind = scattered_by(op)
    known = op_name(name, "grouped_reducescatter", ignore_name_scope)
    small, contexts = _compress(tensors, compression, "grouped_reducescatter")

    def together(_: Where, arrays: List[Array]) -> Any:
        parts = [_operations.reducescatter(array, kind, prescale_factor, postscale_factor) for array in arrays]
        return grouped(parts, "reducescatter")

    def run(inputs: Tensors) -> List[tf.Tensor]:
        rows = made_by(inputs, [tensor.dtype for tensor in inputs], process_set, together, known)
        return [with_rows(result, like) for result, like in zip(rows, inputs)]

    def back(upstream: Tensors, _: List[int]) -> List[tf.Tensor]:
        factor = prescale_factor * postscale_factor * (process_set.size() if kind == ddl.Sum else 1)
        return _gathered([scaled(tensor, factor) for tensor in upstream], gradient_name(known), process_set)

    return _decompress(_differentiable(small, run, back), contexts, compression)
