"""Versions of TensorFlow and Keras: the only file of the adapter that may ask which one this is."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any, Callable, Optional, Tuple

import numpy as np

__all__ = ["NEWEST_TESTED", "could_record", "eager_tensor", "warn_if_newer"]

#: The newest that DDL's tests were run with.
NEWEST_TESTED = {"TensorFlow": "2.21", "Keras": "3.15"}

log = logging.getLogger("ddl")


def _numbers(version: str) -> Tuple[int, ...]:
    """Return major and minor number."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


@functools.cache
def warn_if_newer(name: str, version: str) -> None:
    """Say, once in a process, that ``version`` of TensorFlow or Keras is newer than the newest that was tested."""
    tested = NEWEST_TESTED[name]
    if _numbers(version) > _numbers(tested):
        log.warning(
            "%s %s is newer than %s, the newest that ddl_tensorflow was tested with. If something fails, try a newer "
            "DDL, or: pip install '%s==%s.*'",
            *(name, version, tested, name.lower(), tested),
        )


def _always() -> bool:
    return True


@functools.cache
def _recording() -> Callable[[], bool]:
    """Return TensorFlow's own question, which has no public name: 0.1 us, where a custom gradient takes 100."""
    try:
        from tensorflow.python.eager.record import could_possibly_record
    except ImportError:
        return _always
    question: Callable[[], bool] = could_possibly_record
    return question


def could_record() -> bool:
    """Return whether a gradient tape may be watching this thread; True where this TensorFlow does not say."""
    return _recording()()


@functools.cache
def _maker(device: str) -> Optional[Callable[[Any, str, None], Any]]:
    """Return the class of eager tensors, if its constructor, which TensorFlow does not describe, does what it did."""
    import tensorflow as tf

    with tf.init_scope():
        like = tf.constant([1.0, 2.0])
    kind: Callable[[Any, str, None], Any] = type(like)
    try:
        tensor = kind(np.array([1.0, 2.0], np.float32), device, None)
    except Exception as error:
        log.debug("eager tensors are made by tf.convert_to_tensor: %s", error)
        return None
    alike = tensor.device == device and tensor.dtype == like.dtype and tensor.numpy().tolist() == [1.0, 2.0]
    return kind if alike else None


def eager_tensor(value: Any, device: str) -> Any:
    """Return an eager tensor with the contents of ``value``; that of a numpy array is on ``device``, if that is a CPU.

    ``tf.convert_to_tensor`` takes 22 us, nearly all of them before it calls the constructor, which takes 2.
    """
    maker = _maker(device) if type(value) is np.ndarray and device.endswith("CPU:0") else None
    if maker is not None:
        return maker(value, device, None)
    import tensorflow as tf

    return tf.convert_to_tensor(value)
