"""``Accumulation``: adds up the gradients of several backward passes. They are sent in the last pass.

Every variable has a dense sum: sparse gradients are added to it, and sent as dense ones.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import tensorflow as tf

import ddl
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow.gradients import Gradients, unwrapped

__all__ = ["Accumulation", "own_variable"]


def own_variable(shape: Any, dtype: tf.DType, name: str) -> Any:
    """Return a variable of zeros that belongs to this rank: it is neither saved nor broadcast.

    In a graph of TF1 it is a local variable, and initialised as such.
    """
    zeros = tf.zeros(shape, dtype)
    if tf.compat.v1.executing_eagerly_outside_functions():
        return tf.Variable(zeros, trainable=False, name=name)
    local = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
    return tf.compat.v1.Variable(zeros, trainable=False, name=name, collections=local, use_resource=True)


class Accumulation:
    """The sums of one optimizer on this rank. A step has ``passes`` backward passes; ``average``: divide by that."""

    def __init__(self, passes: int, average: bool) -> None:
        if not isinstance(passes, int) or passes < 1:
            raise ddl.InvalidArgument(f"backward_passes_per_step={passes!r} must be a whole number from 1 on")
        self.passes = passes
        self.average = average
        self._count: Any = None  # passes of this step so far
        self._sums: Dict[int, Tuple[Any, Any]] = {}  # by id: the variable, which so keeps it, and its sum

    def _prepare(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Make what is missing, outside of whatever function or condition this is called in."""
        with tf.init_scope():
            if self._count is None:
                self._count = own_variable([], tf.int64, "backward_passes")
            for gradient, variable in zip(gradients, variables):
                own = unwrapped(variable)
                if gradient is not None and id(own) not in self._sums:
                    self._sums[id(own)] = own, own_variable(own.shape, gradient.dtype, "gradient_sum")

    @as_written
    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Tuple[tf.Tensor, Gradients, List[Any]]:
        """Return whether this pass is a step's last one, the sums, and what TF1 has to run besides.

        The sums start anew with the next step. No variable is read in what depends on the answer, so that each sum can
        be sent when it is there.
        """
        self._prepare(gradients, variables)
        count = (self._count.read_value() + 1) % self.passes
        last = tf.equal(count, 0)
        kept = [self._count.assign(count)]
        totals: Gradients = []
        for gradient, variable in zip(gradients, variables):
            if gradient is None:
                totals.append(None)
                continue
            _, sum_ = self._sums[id(unwrapped(variable))]
            total = sum_.read_value() + tf.convert_to_tensor(gradient)
            kept.append(sum_.assign(tf.where(last, tf.zeros_like(total), total)))
            totals.append(total / self.passes if self.average else total)
        return last, totals, kept
