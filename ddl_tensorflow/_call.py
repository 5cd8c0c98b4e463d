"""``call``: makes a function of DDL on numpy arrays a part of what TensorFlow runs.

It uses the op of call_op.cc, which runs while other ops run. Without a compiler, or with DDL_TENSORFLOW_OP=0, it uses
``tf.numpy_function``: that gives the same results, but makes a graph wait and runs one call after another.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow as tf

import ddl
from ddl.adapter.joining import Settings
from ddl_tensorflow import _errors
from ddl_tensorflow._build import BuildError, op_library
from ddl_tensorflow._compat import eager_tensor, warn_if_newer
from ddl_tensorflow._native import Function, NativeOp, listed
from ddl_tensorflow._xla import compiled_later, refuse

__all__ = ["call", "native_op", "never"]

log = logging.getLogger("ddl")

Array = np.ndarray[Any, Any]

_FEW = 1 << 15  #: elements; to copy so many takes some microseconds
_ANCHOR_BYTES = 256  #: TensorFlow makes a constant of a tensor of up to 128 elements that a function captures


@functools.cache
def native_op() -> Optional[NativeOp]:
    """Return the op, compiled if need be; None, and a warning once, if there is none."""
    warn_if_newer("TensorFlow", tf.__version__)
    _errors.install()
    compiled_later()
    if not Settings.from_environ().tensorflow_op:
        return None
    try:
        return NativeOp(str(op_library()))
    except BuildError as error:
        log.warning(
            "without its op DDL goes through tf.numpy_function, and nothing is sent meanwhile; set DDL_TENSORFLOW_OP=0 "
            "on all ranks: names of operations in loops differ: %s",
            error,
        )
        return None


@functools.cache
def _captured() -> tf.Tensor:
    with tf.init_scope():
        return tf.zeros(_ANCHOR_BYTES, tf.uint8)


def _anchor() -> tf.Tensor:
    """Return a tensor that is no constant to TensorFlow: see call_op.cc."""
    if not tf.executing_eagerly():
        with tf.init_scope():
            alone = not tf.executing_eagerly()  # a graph of TF1, and functions in it, cannot capture anything
        if alone:
            return tf.cast(tf.timestamp(), tf.uint8)
    return _captured()


def never() -> tf.Tensor:
    """Return False, which TensorFlow cannot find out before it runs."""
    return tf.greater(tf.cast(tf.reshape(_anchor(), [-1])[0], tf.int32), 255)


def _is_small(inputs: Sequence[tf.Tensor]) -> bool:
    """Return whether it is quicker to copy tensors, which have values, than to have an op made and run on them."""
    return all(tensor.shape.num_elements() <= _FEW and tensor.device.endswith("CPU:0") for tensor in inputs)


def call(
    function: Function,
    inputs: Sequence[tf.Tensor],
    dtypes: Optional[Sequence[tf.DType]] = None,
    *,
    always: bool = False,
    at_once: bool = True,
    after: Optional[tf.Tensor] = None,
) -> List[tf.Tensor]:
    """Return tensors that ``function`` makes of ``inputs`` whenever TensorFlow runs this.

    dtypes: types of the results; None: these are ``inputs``' own, as are the shapes. always: it is run though nobody
    uses a result, and in the order of the program among others of that kind. at_once: ``function`` need not sleep.
    after: a result, of uint8, of another call, which is made before; its contents are not used.
    """
    refuse()
    native, eager = native_op(), tf.executing_eagerly()
    if native is not None and not (eager and _is_small(inputs)):
        return native(function, _anchor() if after is None else after, inputs, dtypes, always, at_once)
    in_place = dtypes is None

    def run(*arrays: Array) -> List[Array]:
        own = [np.asarray(array) for array in arrays]
        results = [np.empty_like(array) for array in own] if in_place else None
        try:
            returned = function(own, results, True).wait()
        except ddl.Error as error:
            if eager:
                raise _errors.with_theirs(error) from None
            # TensorFlow raises an error of its own, chosen by the built-in class.
            kind = ValueError if isinstance(error, ddl.InvalidArgument) else RuntimeError
            raise kind(_errors.text_of(error)) from None
        return listed(returned) if results is None else results

    if eager:  # numpy_function fails at a bfloat16 without dimensions
        results = run(*[tensor.numpy() for tensor in inputs])
        device = inputs[0].device if inputs else ""
        return [eager_tensor(result, device) for result in results]
    types = [tensor.dtype for tensor in inputs] if dtypes is None else list(dtypes)
    with tf.control_dependencies([] if after is None else [after]):
        returned = tf.numpy_function(run, list(inputs), types)
    outputs = [returned] if isinstance(returned, tf.Tensor) else list(returned)
    if in_place:
        for tensor, like in zip(outputs, inputs):
            tensor.set_shape(like.shape)
    return outputs
