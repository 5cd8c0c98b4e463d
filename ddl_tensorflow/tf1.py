"""Optimizers of TF1 (``tf.compat.v1.train.Optimizer``), made distributed in place; for sessions, and eagerly.

``compute_gradients`` returns the averages, so that they can be clipped before ``apply_gradients``.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Type

import tensorflow as tf

import ddl
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow._noted_steps import note
from ddl_tensorflow._steps import Steps

__all__ = ["distribute"]

Pair = Tuple[Any, Any]  #: a gradient and its variable


def distribute(optimizer: Any, steps: Steps) -> Any:
    """Make ``optimizer`` take ``steps``; return it. Raises ``InvalidArgument``."""
    Steps.refuse_twice(optimizer)
    optimizer._ddl = steps
    optimizer.__class__ = _distributed(type(optimizer))
    return optimizer


def _distributed(kind: Type[Any]) -> Type[Any]:
    return type(f"Distributed{kind.__name__}", (_DistributedTf1Optimizer, kind), {})


class _DistributedTf1Optimizer:
    """What is in the class of a distributed optimizer, before its old class. ``_ddl``: see ``Steps``."""

    _ddl: Steps
    _ddl_pass: Tuple[Any, List[Any]]  #: of the last ``compute_gradients``: is it a step's last, and what to run besides

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[Pair]:
        """As the wrapped optimizer's, averaged over the ranks. Collective, where TensorFlow runs it.

        With several backward passes per step, these are the sums so far but in the last one.
        """
        pairs: Sequence[Pair] = super().compute_gradients(*args, **kwargs)  # type: ignore[misc]
        gradients, variables = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        steps = self._ddl
        if steps.accumulation.passes == 1:
            return list(zip(steps.averaging(gradients, variables), variables))
        last, sums, kept = steps.accumulation.add(gradients, variables)
        self._ddl_pass = last, kept
        there = [i for i, total in enumerate(sums) if total is not None]

        def averages() -> List[tf.Tensor]:
            averaged = steps.averaging(sums, variables)
            return [tf.identity(averaged[i]) for i in there]

        results = tf.cond(last, averages, lambda: [tf.identity(sums[i]) for i in there]) if there else []
        for i, total in zip(there, [results] if len(there) == 1 and tf.is_tensor(results) else results):
            sums[i] = total
        return list(zip(sums, variables))

    @as_written
    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Optional[str] = None) -> Any:
        """As the wrapped optimizer's; of several backward passes per step, the last one changes the variables."""
        pairs, steps, update = list(grads_and_vars), self._ddl, super().apply_gradients  # type: ignore[misc]
        if steps.accumulation.passes == 1:
            return self._ended(update(pairs, global_step=global_step, name=name), pairs, global_step)
        if not hasattr(self, "_ddl_pass"):
            raise ddl.InvalidState("apply_gradients came before compute_gradients, which counts the backward passes")
        last, kept = self._ddl_pass
        with tf.init_scope():  # a conditional branch cannot make variables
            self._create_slots([variable for gradient, variable in pairs if gradient is not None])  # type: ignore[attr-defined]

        def end() -> tf.Tensor:
            done = self._ended(update(pairs, global_step=global_step, name=name), pairs, global_step)
            with tf.control_dependencies([] if done is None else [done]):
                return tf.constant(True)

        def count() -> tf.Tensor:
            counted = [] if global_step is None else [global_step.assign_add(1)]
            with tf.control_dependencies(counted):
                return tf.constant(False)

        with tf.control_dependencies([tf.convert_to_tensor(gradient) for gradient, _ in pairs if gradient is not None]):
            done = tf.cond(last, end, count)
        return None if tf.executing_eagerly() else tf.group(done, *[op for op in kept if op is not None])

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable on this rank, each rank its own; all ranks say so alike."""
        self._ddl.averaging.register_local(var)

    def _ended(self, updated: Any, pairs: Sequence[Pair], global_step: Any) -> Any:
        """Return what runs ``updated``, notes the step, and checks weights if that is wanted."""
        noted = note(self._ddl.averaging, [] if updated is None else [updated])
        checked = self._checked(updated, pairs, global_step)
        return tf.group(*noted, *([] if checked is None else [checked])) if noted else checked

    def _checked(self, updated: Any, pairs: Sequence[Pair], global_step: Any) -> Any:
        check = self._ddl.check
        if not check.wanted:
            return updated
        if global_step is None:
            raise ddl.InvalidArgument("check_every counts by global_step; pass tf.compat.v1.train.get_global_step()")
        is_local = self._ddl.averaging.is_local
        with tf.control_dependencies([] if updated is None else [updated]):
            steps = global_step.read_value() // self._ddl.accumulation.passes
            done = check(steps, [variable for _, variable in pairs if not is_local(variable)])
        return updated if updated is None else tf.group(updated, done)
