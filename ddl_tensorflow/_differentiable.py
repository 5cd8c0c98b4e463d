"""``differentiable``: as ``tf.custom_gradient``, for functions with one call of DDL, but faster in a graph.

In a graph, TensorFlow's own adds an op that keeps the inputs and results of the call: then the call cannot write to its
input's memory, and must copy it. So here the op has a registered gradient, which finds DDL's function by the call's
number.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Tuple

import tensorflow as tf

import ddl
from ddl_tensorflow import _call
from ddl_tensorflow._compat import could_record

__all__ = ["differentiable"]

#: Returns results and what makes gradients for tensors of gradients for results.
Function = Callable[..., Tuple[Any, Callable[..., Any]]]

_gradients: Dict[int, Callable[..., Any]] = {}  # by the number of a graph's call; for good, as the call itself


def differentiable(function: Function) -> Callable[..., Any]:
    """Return ``function``, which makes of tensors the pair (results of a call, their gradient), as one of the results.

    ``gradient(*upstream)`` returns a gradient for each of the first inputs of the call.
    """

    def run(*tensors: tf.Tensor) -> Any:
        eager = tf.executing_eagerly()
        if eager and not could_record():
            return function(*tensors)[0]
        if eager or _call.native_op() is None:
            return tf.custom_gradient(function)(*tensors)
        _register()
        results, gradient = function(*tensors)
        _gradients[tf.nest.flatten(results)[0].op.get_attr("call")] = gradient
        return results

    return run


@functools.cache
def _register() -> None:
    @tf.RegisterGradient("DdlCall")
    def gradient(op: Any, *upstream: Any) -> List[Any]:
        ours = _gradients.get(op.get_attr("call"))
        if ours is None:
            raise ddl.InvalidArgument("averages of gradients, and collectives on variables, have no gradient")
        result = ours(*upstream)
        gradients = list(result) if isinstance(result, (list, tuple)) else [result]
        return [None, *gradients, *[None] * (len(op.inputs) - 1 - len(gradients))]  # the first input is the anchor
