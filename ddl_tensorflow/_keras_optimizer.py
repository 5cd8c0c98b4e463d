"""Keras's optimizers, made distributed in place: they get another class, and keep their state, name and schedules.

To Keras such an object is of its old class (``optimizer.__class__``), and it is saved as that: a program that loads the
model needs no DDL, and gets an optimizer that is not distributed. The program that made the optimizer imports Keras;
DDL does not.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Dict, Optional, Sequence, Type

import ddl
from ddl_tensorflow._collectives import as_written
from ddl_tensorflow._compat import warn_if_newer
from ddl_tensorflow._steps import Steps

__all__ = ["distribute", "is_keras_optimizer"]


def is_keras_optimizer(optimizer: Any) -> bool:
    """Return whether it is one of Keras 3."""
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "Optimizer") and isinstance(optimizer, keras.Optimizer)


def distribute(optimizer: Any, steps: Steps) -> Any:
    """Make ``optimizer`` take ``steps``; return it. Raises ``InvalidArgument``."""
    keras: Any = sys.modules["keras"]
    backend = keras.backend.backend()
    if backend != "tensorflow":
        other = {"torch": "import ddl_torch instead, or set KERAS_BACKEND=tensorflow"}
        raise ddl.InvalidArgument(
            f"Keras computes with {backend}, and ddl_tensorflow with TensorFlow: "
            f"{other.get(backend, 'set KERAS_BACKEND=tensorflow before keras is imported')}"
        )
    warn_if_newer("Keras", keras.__version__)
    Steps.refuse_twice(optimizer)
    _average_before_scaling(keras.optimizers.LossScaleOptimizer)
    object.__setattr__(optimizer, "_ddl", steps)
    object.__setattr__(optimizer, "__class__", _distributed(type(optimizer), steps))
    return optimizer


class _DistributedKerasOptimizer:
    """What is in the class of a distributed optimizer, before its old class. ``_ddl``: see ``Steps``."""

    _ddl: Steps

    @as_written
    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """As the wrapped optimizer's, with the averages of ``grads`` over the ranks. Collective."""
        _apply(self, self._ddl, super().apply, grads, trainable_variables)  # type: ignore[misc]

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of a variable on this rank, each rank its own; all ranks say so alike."""
        self._ddl.averaging.register_local(var)


def _apply(optimizer: Any, steps: Steps, update: Any, grads: Any, variables: Optional[Sequence[Any]]) -> None:
    gradients = list(grads)
    if not gradients:
        return
    if variables is not None:
        variables = list(variables)
        if not optimizer.built:  # here: a conditional branch cannot make variables
            keras: Any = sys.modules["keras"]
            with keras.name_scope(optimizer.name):
                optimizer.build(variables)
    known = optimizer._trainable_variables if variables is None else variables
    if len(known) != len(gradients):
        raise ddl.InvalidArgument(
            f"apply: {len(gradients)} gradients for {len(known)} variables; pass one for each, and build the optimizer "
            "or pass the variables"
        )
    steps.apply(gradients, known, lambda averages: update(averages, variables), lambda: optimizer.iterations)


def _distributed(kind: Type[Any], steps: Steps) -> Type[Any]:
    """Return a class of distributed optimizers; its ``from_config`` makes others that are distributed alike."""

    def from_config(cls: Type[Any], config: Dict[str, Any], custom_objects: Optional[Dict[str, Any]] = None) -> Any:
        return distribute(kind.from_config(config, custom_objects=custom_objects), steps.again())

    # Keras asks for ``__class__`` when it saves; ``type`` tells the truth.
    members = {"__class__": property(lambda self: kind), "from_config": classmethod(from_config)}
    return type(f"Distributed{kind.__name__}", (_DistributedKerasOptimizer, kind), members)


@functools.cache
def _average_before_scaling(kind: Type[Any]) -> None:
    """Let a LossScaleOptimizer around a distributed optimizer look for infinity in the averages.

    Keras puts one around every optimizer of a model with the policy "mixed_float16". By itself it would look at this
    rank's gradients, and some ranks would take a step that the others skip.
    """
    original = kind.apply

    @functools.wraps(original)
    @as_written
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        steps = vars(self.inner_optimizer).get("_ddl")
        if isinstance(steps, Steps):
            _apply(self, steps, functools.partial(original, self), grads, trainable_variables)
        else:
            original(self, grads, trainable_variables)

    kind.apply = apply
