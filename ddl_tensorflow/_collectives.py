"""What the verbs and their grouped forms share: collectives on lists of tensors, with their gradients.

A verb passes its tensor ``alone``, as a list of one, and ranks agree on the operation of that tensor. A grouped form
passes several, which are one operation for the ranks, of the name ``grouped_…``. Names are those that ``_names`` makes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

import ddl
from ddl import Average, ReduceOp
from ddl.adapter.operations import Operation, Waitable, grouped
from ddl.adapter.process_sets import ProcessSet
from ddl.errors import NotSupported
from ddl.reduce_op import OpLike, parse_op
from ddl_tensorflow import _operations
from ddl_tensorflow._call import call
from ddl_tensorflow._differentiable import differentiable
from ddl_tensorflow._names import gradient_name, part_name
from ddl_tensorflow._scaling import scaled, sums_of_rows
from ddl_tensorflow._where import Where
from ddl_tensorflow.compression import casting

__all__ = [
    *("OperationKey", "allreduced", "as_written", "cast_with", "dense", "gathered", "in_place", "made_by", "scattered"),
    *("scattered_by", "slices_allreduced", "with_rows"),
]

Array = np.ndarray[Any, Any]
Tensors = Sequence[tf.Tensor]


@dataclass(frozen=True)
class OperationKey:
    """How ranks agree on a collective: its name, whose ranks, and whether it is that of one tensor."""

    name: Optional[str]
    process_set: ProcessSet
    alone: bool

    def on(self, parts: Sequence[Operation[Any]], verb: str) -> Operation[Any]:
        """Return the operation of a verb on tensors whose own operations are ``parts``."""
        return parts[0] if self.alone else grouped(parts, verb)

    def of_gradient(self) -> OperationKey:
        """Return how they agree on the gradient."""
        return replace(self, name=gradient_name(self.name))

    def of_part(self, part: str) -> OperationKey:
        """Return how they agree on a part of the collective that is a collective itself."""
        return replace(self, name=part_name(self.name, part))


#: Else AutoGraph rewrites, in a tf.function, all that a verb calls, also what runs in other threads later.
as_written = tf.autograph.experimental.do_not_convert


@functools.cache
def _eager_tensor() -> Any:
    with tf.init_scope():
        return type(tf.zeros(()))


def dense(tensor: Any, verb: str) -> tf.Tensor:
    """Return as a tensor what a verb was given: a tensor, a variable, an array, a number, a list of these."""
    if isinstance(tensor, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)):
        raise ddl.InvalidArgument(f"{verb}: a {type(tensor).__name__} is no dense tensor; pass tf.convert_to_tensor(…)")
    ddl.rank()  # InvalidState now, and not when a graph is run
    if type(tensor) is _eager_tensor() and (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return tensor
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


def allreduced(tensors: Tensors, op: ReduceOp, prescale: float, postscale: float, key: OperationKey) -> List[tf.Tensor]:
    """All-reduce each of ``tensors``. Their gradients: the same operation on the results' gradients."""

    def operation(_: Where, targets: List[Array]) -> Operation[Any]:
        parts = [_operations.allreduce(target, op, prescale, postscale) for target in targets]
        return key.on(parts, "allreduce")

    return _differentiable(
        tensors,
        lambda inputs: in_place(inputs, key.process_set, operation, key.name),
        lambda upstream, _: allreduced(upstream, op, prescale, postscale, key.of_gradient()),
    )


def slices_allreduced(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    name: Optional[str],
    process_set: ProcessSet,
    gather: Optional[Callable[[tf.Tensor, Optional[str], ProcessSet], tf.Tensor]] = None,
) -> tf.IndexedSlices:
    """Gather the rows of all ranks; what uses them adds up those of one index.

    Integers are added up here, before they are divided: truncating a part of a sum would lose it. ``gather``: what
    takes the place of an all-gather.
    """

    def rows(tensor: tf.Tensor, part: str) -> tf.Tensor:
        if gather is not None:
            return gather(dense(tensor, "allreduce"), part_name(name, part), process_set)
        key = OperationKey(part_name(name, part), process_set, alone=True)
        return gathered([dense(tensor, "allreduce")], key)[0]

    if op not in (Average, ddl.Sum):
        raise NotSupported(f"allreduce: IndexedSlices can be averaged and summed, not {op!r}; make them dense")
    values, indices = rows(slices.values, "values"), rows(slices.indices, "indices")
    gathered_slices = tf.IndexedSlices(values, indices, slices.dense_shape)
    factor, divisor = prescale * postscale, process_set.size() if op == Average else 1
    if values.dtype.is_integer and not factor == divisor == 1:
        gathered_slices = sums_of_rows(gathered_slices)
    result = tf.cast(scaled(gathered_slices.values, factor, divisor), values.dtype)
    return tf.IndexedSlices(result, gathered_slices.indices, slices.dense_shape)


def gathered(tensors: Tensors, key: OperationKey) -> List[tf.Tensor]:
    """All-gather each of ``tensors``. Their gradients: averages of all ranks' gradients of this rank's rows."""

    def operation(_: Where, arrays: List[Array]) -> Operation[Any]:
        return key.on([_operations.allgather(array) for array in arrays], "allgather")

    def gradients(upstream: Tensors, which: List[int]) -> List[tf.Tensor]:
        backward, ranks = key.of_gradient(), key.process_set
        means = allreduced(upstream, Average, 1.0, 1.0, backward)
        counts = gathered([tf.shape(tensors[i])[:1] for i in which], backward.of_part("rows"))
        return [tf.split(mean, count, num=ranks.size())[ranks.rank()] for mean, count in zip(means, counts)]

    return _differentiable(tensors, lambda inputs: _rows_made_by(inputs, operation, key), gradients)


def scattered_by(op: OpLike) -> ReduceOp:
    """Return the operator of a reduce-scatter. Raises ``NotSupported``, a ``RuntimeError``, if it cannot have that."""
    kind = parse_op(op, "reducescatter")
    if kind == ddl.Adasum:
        raise NotSupported(
            "reducescatter: op=ddl.Adasum is there for all-reduces only; use allreduce, and take your rows"
        )
    return kind


def scattered(tensors: Tensors, op: ReduceOp, prescale: float, postscale: float, key: OperationKey) -> List[tf.Tensor]:
    """Reduce-scatter each of ``tensors``. Their gradients: all ranks' gradients, times their number for a sum."""

    def operation(_: Where, arrays: List[Array]) -> Operation[Any]:
        parts = [_operations.reducescatter(array, op, prescale, postscale) for array in arrays]
        return key.on(parts, "reducescatter")

    def gradients(upstream: Tensors, _: List[int]) -> List[tf.Tensor]:
        factor = prescale * postscale * (key.process_set.size() if op == ddl.Sum else 1)
        return gathered([scaled(tensor, factor) for tensor in upstream], key.of_gradient())

    return _differentiable(tensors, lambda inputs: _rows_made_by(inputs, operation, key), gradients)


def _rows_made_by(
    tensors: Tensors, operation: Callable[[Where, List[Array]], Operation[Any]], key: OperationKey
) -> List[tf.Tensor]:
    """``made_by``, where each result is like its tensor but for the number of rows."""
    dtypes = [tensor.dtype for tensor in tensors]
    results = made_by(tensors, dtypes, key.process_set, operation, key.name)
    return [with_rows(result, tensor) for result, tensor in zip(results, tensors)]


def _differentiable(
    tensors: Tensors,
    run: Callable[[Tensors], List[tf.Tensor]],
    gradients: Callable[[Tensors, List[int]], List[tf.Tensor]],
) -> List[tf.Tensor]:
    """Return ``run(tensors)``. Tensors of numbers with a fraction have gradients, the others (None) have not.

    ``gradients``: makes those of the tensors of these numbers (the second argument) of the gradients of their results.
    """
    if not tensors:
        return []
    smooth = [i for i, tensor in enumerate(tensors) if tensor.dtype.is_floating or tensor.dtype.is_complex]

    @differentiable
    def forward(*inputs: tf.Tensor) -> Tuple[List[tf.Tensor], Callable[..., List[Optional[tf.Tensor]]]]:
        def gradient(*upstream: tf.Tensor) -> List[Optional[tf.Tensor]]:
            all_gradients: List[Optional[tf.Tensor]] = [None] * len(inputs)
            for i, own in zip(smooth, gradients([upstream[i] for i in smooth], smooth)):
                all_gradients[i] = own
            return all_gradients

        return run(inputs), gradient

    return list(forward(*tensors))


def cast_with(
    compression: Any, tensors: Sequence[Any], verb: str, run: Callable[[List[tf.Tensor]], List[tf.Tensor]]
) -> List[tf.Tensor]:
    """Return ``run`` of the tensors, which meanwhile are of the type that ``compression`` makes them."""
    cast = casting(compression)
    pairs = [cast.compress(dense(tensor, verb)) for tensor in tensors]
    results = run([small for small, _ in pairs])
    return [cast.decompress(result, context) for result, (_, context) in zip(results, pairs)]
