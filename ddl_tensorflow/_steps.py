"""``Steps``: what distributed optimizers do at each step, and the arguments with which they are made."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, Optional, Sequence

import tensorflow as tf

import ddl
from ddl_tensorflow._accumulation import Accumulation
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow._noted_steps import note
from ddl_tensorflow._weights_check import WeightsCheck
from ddl_tensorflow.gradients import GradientAveraging, Gradients

__all__ = ["Steps"]


class Steps:
    """Averages, adds up and checks for one optimizer."""

    def __init__(self, averaging: GradientAveraging, accumulation: Accumulation, check: WeightsCheck) -> None:
        self.averaging = averaging
        self.accumulation = accumulation
        self.check = check
        self._under_way = False

    def again(self) -> Steps:
        """Return the same for another optimizer."""
        accumulation = Accumulation(self.accumulation.passes, self.accumulation.average)
        return Steps(self.averaging, accumulation, WeightsCheck(self.check.every, 0, self.averaging.process_set))

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._under_way = True
        try:
            yield
        finally:
            self._under_way = False

    @as_written
    def apply(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        update: Callable[[Gradients], Any],
        iterations: Callable[[], Any],
    ) -> None:
        """Average ``gradients`` and ``update`` with them, in a step's last backward pass.

        ``iterations()``: the variable in which the optimizer counts its steps. As in Horovod and in Keras' own
        accumulation of gradients, it counts every pass, so that schedules of learning rates go by batches.

        What ``update`` calls may come here again, as of a LossScaleOptimizer around a distributed one: then there is
        nothing left to average.
        """
        if self._under_way:
            update(list(gradients))
            return

        def step(own: Gradients) -> None:
            averages = self.averaging(own, variables, iterations())
            before = tf.convert_to_tensor(iterations())
            with self._inside():
                update(averages)
            # The number stays where a LossScaleOptimizer leaves the step out, and where Keras adds up gradients itself.
            note(self.averaging, averages, tf.not_equal(tf.convert_to_tensor(iterations()), before))
            if self.check.wanted:
                steps_taken = tf.convert_to_tensor(iterations()) // self.accumulation.passes
                self.check(steps_taken, [variable for variable in variables if not self.averaging.is_local(variable)])

        if self.accumulation.passes == 1:
            step(list(gradients))
            return
        last, sums, _ = self.accumulation.add(gradients, variables)

        def end() -> Optional[tf.Tensor]:
            step(sums)
            return tf.constant(True)

        def count() -> tf.Tensor:
            iterations().assign_add(1)
            return tf.constant(False)

        tf.cond(last, end, count)

    @staticmethod
    def refuse_twice(optimizer: Any) -> None:
        """Raise ``InvalidArgument`` if it is distributed already."""
        inner = optimizer
        while inner is not None:
            if isinstance(vars(inner).get("_ddl"), Steps):
                raise ddl.InvalidArgument(f"this {type(inner).__name__} is distributed already; wrap it once")
            inner = getattr(inner, "inner_optimizer", None)
