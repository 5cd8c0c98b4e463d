"""Which parts of DDL work with which backend of Keras 3; and a model's variables as numpy arrays, with any backend.

TensorFlow: everything. Torch and JAX: what goes through callbacks, which exchange arrays of numpy between two batches:
broadcast, averages of metrics, learning rates, checkpoints, ``KerasState``, and ``WeightAverageCallback``, which trains
in place of ``DistributedOptimizer``. ``DistributedOptimizer`` and collectives on tensors need TensorFlow; elsewhere
their error names what to use instead.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List

import keras
import numpy as np

import ddl

__all__ = ["described", "distributed", "is_floating", "is_tensorflow", "local_variables", "need_tensorflow"]
__all__ += ["publish", "read", "state_of", "write"]

Array = np.ndarray[Any, Any]

_NUMBER = re.compile(r"_\d+$")

_INSTEAD = {
    "torch": "In a loop of your own, use the adapter ddl_torch (ddl_torch.DistributedOptimizer with an optimizer of "
    "torch.optim, ddl_torch.allreduce)",
    "jax": "There is no adapter for JAX; ddl.allreduce takes arrays of numpy",
}


def is_tensorflow() -> bool:
    """Return whether Keras runs on TensorFlow."""
    return bool(keras.backend.backend() == "tensorflow")


def need_tensorflow(what: str) -> None:
    """Raise ``ConfigError`` unless Keras runs on TensorFlow."""
    if is_tensorflow():
        return
    name = keras.backend.backend()
    instead = _INSTEAD.get(name, "")
    raise ddl.ConfigError(
        f"{what}: Keras runs on {name}, and this is for KERAS_BACKEND=tensorflow. In fit, use the plain optimizer and "
        f"ddl_tensorflow.keras.callbacks.WeightAverageCallback. {instead}".rstrip()
    )


def distributed(optimizer: Any) -> bool:
    """Return whether an optimizer, or the one that it scales the loss for, averages gradients over ranks."""
    return _steps(optimizer) is not None


def local_variables(optimizer: Any) -> List[Any]:
    """Return the variables whose gradients an optimizer leaves on this rank."""
    steps = _steps(optimizer)
    return [] if steps is None else list(steps.averaging.local)


def _steps(optimizer: Any) -> Any:
    """Return what makes it a distributed one (ddl_tensorflow/_steps.py); None if it is not."""
    return getattr(optimizer, "_ddl", None) or getattr(getattr(optimizer, "inner_optimizer", None), "_ddl", None)


def publish(model: Any) -> None:
    """Let the model's variables have what training made of them: with JAX, ``fit`` keeps that elsewhere meanwhile."""
    bring = getattr(model, "jax_state_sync", None)
    if bring is not None:
        bring()


def read(variable: Any) -> Array:
    """Return a copy of a variable's value, contiguous."""
    return np.array(keras.ops.convert_to_numpy(variable), order="C")


def described(variable: Any) -> str:
    """Return a variable's type and shape, to be compared and shown."""
    return f"{keras.backend.standardize_dtype(variable.dtype)} of shape {tuple(variable.shape)}"


def write(variable: Any, value: Array) -> None:
    """Set a variable."""
    variable.assign(value)


def state_of(model: Any, optimizer: Any, leave_out: Iterable[Any] = ()) -> Dict[str, Any]:
    """Return all variables of both but the metrics', each once, by names that are the same on ranks that do the same.

    Keras numbers layers as they are made, and a model that was loaded has other paths than one that was built: so these
    names have numbers of ours, and of the path what both have. Slots are called after paths: they have numbers only.
    """
    seen = {id(alias) for variable in leave_out for alias in _same(variable)}
    seen |= {id(variable) for variable in getattr(model, "metrics_variables", ())}
    state: Dict[str, Any] = {}
    for whose, variables in (("model", model.variables), ("optimizer", optimizer.variables if optimizer else ())):
        for variable in variables:
            if seen.isdisjoint(id(alias) for alias in _same(variable)):
                seen.add(id(variable))
                path = getattr(variable, "path", None) or variable.name
                parts = [_NUMBER.sub("", part) for part in path.split("/")[-2:]] if whose == "model" else []
                state["/".join([f"variable {len(state)} of the {whose}", *parts])] = variable
    return state


def _same(variable: Any) -> List[Any]:
    """Return the objects under which a variable is known: Keras', and the backend's inside."""
    return [variable, variable._value] if isinstance(variable, keras.Variable) else [variable]


def is_floating(array: Array) -> bool:
    """Return whether an average of such arrays makes sense: whether they are of floating point."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
