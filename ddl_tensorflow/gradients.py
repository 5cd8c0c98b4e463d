"""``GradientAveraging``: the gradients of a step, averaged over the ranks; what tapes and optimizers have in common.

Dense gradients go in buckets, last variables first, as a backward pass makes them. A bucket is one op: it is sent when
TensorFlow has made its gradients, while others are still being made, and overwrites them where they are. Buckets have
names, as ranks may come to them in different orders. Sparse gradients (``IndexedSlices``) are gathered.

When TensorFlow traces a function, it knows whether a variable has a gradient, and of which kind. This must be the same
on all ranks: each bucket tells what is missing or sparse, and which step it belongs to, and if ranks differ, all get
``CollectiveMismatch``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import tensorflow as tf

import ddl
from ddl import Average, ReduceOp
from ddl.adapter.buckets import BUCKET_BYTES, Gradient, assign, group_numbers
from ddl.adapter.generation import ranks_may_change
from ddl.adapter.malloc_settings import tune_allocator
from ddl.adapter.operations import CompletedOperation, Operation, Waitable
from ddl.adapter.operator_checks import check_gradient_op, check_predivide
from ddl.adapter.process_sets import ProcessSet
from ddl.reduce_op import OpLike, parse_op
from ddl_tensorflow import _bucket, _operations
from ddl_tensorflow._call import call
from ddl_tensorflow._collectives import as_written, in_place, made_by, slices_allreduced, with_rows
from ddl_tensorflow._names import name_here, op_name, part_name
from ddl_tensorflow._same_weights import NamedVariable, SecondStep, comparison, readable
from ddl_tensorflow._step_numbers import StepNumbers, counted, step_text
from ddl_tensorflow._where import Where, global_process_set
from ddl_tensorflow.compression import Compression, casting

__all__ = ["GradientAveraging", "Gradients", "Groups"]

Array = np.ndarray[Any, Any]
Gradients = List[Any]  #: a dense tensor, ``tf.IndexedSlices``, or None, for each variable
Groups = Union[None, int, Sequence[Sequence[Any]]]

_NAMED = 3  #: variables that an error names


def unwrapped(variable: Any) -> Any:
    """Return TensorFlow's variable of one of Keras's; anything else as it is."""
    return getattr(variable, "_value", variable)


def name_of(variable: Any, number: int) -> str:
    """Return how errors call a variable; ``number``: its place among the others."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or f"number {number}")


@dataclass
class GradientAveraging:
    """How gradients are averaged: arguments of the optimizers and tapes, documented there.

    With the first one, glibc keeps freed memory from then on: TensorFlow frees all gradients of a step.
    """

    op: OpLike = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    bucket_bytes: int = BUCKET_BYTES
    name: Optional[str] = None
    local: List[Any] = field(default_factory=list)  #: variables whose gradients stay on this rank
    _numbers: StepNumbers = field(default_factory=StepNumbers, repr=False)
    _second: SecondStep = field(default_factory=SecondStep, repr=False)

    def __post_init__(self) -> None:
        self.op = parse_op(self.op)
        check_gradient_op(self.op)
        check_predivide(self.gradient_predivide_factor, self.op)
        if not isinstance(self.scale_local_gradients, (bool, np.bool_)):  # Horovod's partial tape has layers there
            raise ddl.InvalidArgument(
                f"scale_local_gradients={self.scale_local_gradients!r}: it is True or False; give local_layers by name"
            )
        self.compression = casting(self.compression)
        group_numbers([None], self.groups)
        tune_allocator()

    @property
    def factors(self) -> Tuple[ReduceOp, float, float]:
        """The operator, and what gradients are multiplied by before it and afterwards."""
        f = self.gradient_predivide_factor
        op = parse_op(self.op)
        return (op, 1.0, 1.0) if f == 1 else (ddl.Sum, 1 / f, f / self.process_set.size())

    @property
    def takes_part(self) -> bool:
        """Whether this rank averages with others, or may later in a graph that is built now, as ranks come and go."""
        return self.process_set.included() and (self.process_set.size() > 1 or ranks_may_change())

    def register_local(self, variable: Any) -> None:
        """Keep the gradient of ``variable`` on this rank; every rank says so alike."""
        self.local.append(unwrapped(variable))

    def is_local(self, variable: Any) -> bool:
        """Whether the gradient of ``variable`` stays on this rank."""
        own = unwrapped(variable)
        return any(own is kept for kept in self.local)

    @as_written
    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any], iterations: Any = None) -> Gradients:
        """Return the averages of ``gradients`` over the ranks; None stays None. Collective.

        ``gradients``, of ``variables``: alike on all ranks in number, shapes, types and kinds. A rank that is not in
        the process set keeps its own. ``iterations``: how many steps the optimizer has made, if there is one that
        counts them: a variable.
        """
        ddl.rank()  # InvalidState now, and not when a graph is run
        Where(self.process_set)
        result = list(gradients)
        if not self.takes_part:
            return result
        local = [self.is_local(variable) for variable in variables]
        if self.scale_local_gradients:
            size = self.process_set.size()
            result = [_divided(gradient, size) if kept else gradient for gradient, kept in zip(result, local)]
        if self.sparse_as_dense:
            result = [
                tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
                for gradient in result
            ]
        name = op_name(self.name, "gradients")
        sparse = [i for i, gradient in enumerate(result) if isinstance(gradient, tf.IndexedSlices) and not local[i]]
        dense = [i for i, gradient in enumerate(result) if gradient is not None and i not in sparse and not local[i]]
        missing = [i for i, gradient in enumerate(result) if gradient is None and not local[i]]
        detail = _listed("no gradient of", missing, variables) + _listed("sparse:", sparse, variables)

        def weights() -> List[NamedVariable]:
            return readable([(name_of(v, i), unwrapped(v)) for i, v in enumerate(variables) if not local[i]])

        step = self._step(name, iterations, weights)
        self._average_dense(result, dense, variables, step, detail, bool(sparse))
        for i in sparse:
            result[i] = self._gathered(result[i], step, f"sparse.{i}")
        return result

    def _step(self, name: Optional[str], iterations: Any, weights: Callable[[], List[NamedVariable]]) -> _GradientStep:
        """Return what all operations of this step have in common. ``weights()`` are compared once."""
        step = _GradientStep(name)
        compared = part_name(name, "weights")
        number = [] if iterations is None else [tf.cast(tf.convert_to_tensor(iterations), tf.int64)]
        if tf.executing_eagerly():
            for iteration in number:
                step.numbers[name] = self._numbers.since_start(name, int(iteration))
            if self._second.begins(name):
                Where(self.process_set).run(comparison(weights()), compared)
            return step

        known = weights()

        def note(arrays: List[Array], _: Any, sleeps: bool) -> Waitable:
            here = name_here(name)
            count = self._numbers.since_start(here, int(arrays[0])) if arrays else counted((id(self.process_set), here))
            step.numbers[here] = count
            if self._second.begins(here):
                return Where(self.process_set).make(comparison(known), compared, sleeps)
            return CompletedOperation(np.zeros((), np.uint8))

        (step.noted,) = call(note, number, [tf.uint8])
        return step

    def _gathered(self, slices: tf.IndexedSlices, step: _GradientStep, part: str) -> tf.IndexedSlices:
        small, context = self.compression.compress(slices.values)

        def gather(tensor: tf.Tensor, name: Optional[str], process_set: ProcessSet) -> tf.Tensor:
            def rows_of(_: Where, arrays: List[Array]) -> Operation[Array]:
                return _operations.allgather(arrays[0], step.text())

            (rows,) = made_by([tensor], [tensor.dtype], process_set, rows_of, name, step.noted)
            return with_rows(rows, tensor)

        sent = tf.IndexedSlices(small, slices.indices, slices.dense_shape)
        got = slices_allreduced(sent, *self.factors, part_name(step.name, part), self.process_set, gather)
        return tf.IndexedSlices(self.compression.decompress(got.values, context), got.indices, got.dense_shape)

    def _average_dense(
        self,
        result: Gradients,
        dense: Sequence[int],
        variables: Sequence[Any],
        step: _GradientStep,
        detail: str,
        others: bool,
    ) -> None:
        """Overwrite in ``result`` those of numbers ``dense``. ``others``: there are gradients that are not dense."""
        if not dense and not others:
            return
        compressed = [self.compression.compress(tf.convert_to_tensor(result[i])) for i in dense]
        tensors = [small for small, _ in compressed]
        for members, number in self._buckets(tensors, [variables[i] for i in dense]):
            reduced = self._send([tensors[k] for k in members], step, number, detail)
            for k, tensor in zip(members, reduced):
                result[dense[k]] = self.compression.decompress(tensor, compressed[k][1])
        if not dense:  # the other ranks may have some: an operation of nothing tells
            told = self._send([tf.zeros([0])], step, 0, detail)
            first = next(i for i, gradient in enumerate(result) if isinstance(gradient, tf.IndexedSlices))
            with tf.control_dependencies(told):
                result[first] = tf.identity(result[first])

    def _buckets(self, tensors: Sequence[tf.Tensor], variables: Sequence[Any]) -> List[Tuple[List[int], int]]:
        """Return which tensors are sent together, and the number of each such bucket."""
        if tf.executing_eagerly():  # all are there
            return [(list(range(len(tensors))), 0)] if tensors else []
        groups = self.groups
        if groups is not None and not isinstance(groups, int):
            groups = [[unwrapped(member) for member in group] for group in groups]
        numbers: Dict[int, int] = {
            id(member): n for member, n in group_numbers([unwrapped(v) for v in variables], groups)
        }
        buckets = assign(
            [
                Gradient(
                    tensor.shape.num_elements() or 0, tensor.dtype, tensor.dtype.size, numbers.get(id(unwrapped(v)))
                )
                for tensor, v in zip(tensors, variables)
            ],
            bucket_bytes=self.bucket_bytes,
        )
        return [([slot.item for slot in bucket.slots], number) for number, bucket in enumerate(buckets)]

    def _send(self, tensors: List[tf.Tensor], step: _GradientStep, number: int, detail: str) -> List[tf.Tensor]:
        op, before, after = self.factors

        def together(_: Where, targets: List[Array]) -> Operation[None]:
            return _bucket.reduction(targets, op, before, after, detail + step.text())

        return in_place(tensors, self.process_set, together, part_name(step.name, f"bucket.{number}"), step.noted)


@dataclass
class _GradientStep:
    """What the operations of a step have in common: the name before theirs, and the step's number.

    Eagerly, dense gradients are one operation, which a rank makes as a whole or not at all; so tapes need no number.
    """

    name: Optional[str]
    noted: Optional[tf.Tensor] = None  #: in a graph: they depend on it, so the number is noted first
    numbers: Dict[Optional[str], int] = field(default_factory=dict)  #: of the places where TensorFlow runs this now

    def text(self) -> str:
        """Return what an operation says of the step when TensorFlow runs it."""
        return step_text(self.numbers[name_here(self.name)]) if self.noted is not None or self.numbers else ""


def _divided(gradient: Any, by: int) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / by, gradient.indices, gradient.dense_shape)
    return gradient / by


def _listed(what: str, numbers: Sequence[int], variables: Sequence[Any]) -> str:
    """Return what ranks must have alike besides shapes, for people: by numbers, as names differ where models do not."""
    shown = [f"variable {i} of shape {tuple(variables[i].shape)}" for i in numbers[:_NAMED]]
    rest = [f"and of {len(numbers) - _NAMED} more: {list(numbers[_NAMED:])}"] if len(numbers) > _NAMED else []
    return f", {what} {', '.join(shown + rest)}" if numbers else ""
