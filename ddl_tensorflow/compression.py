"""``Compression``: how a tensor is written while it is reduced, as ``compression=`` takes it; and its classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import tensorflow as tf

from ddl_tensorflow._public import public_names

__all__ = ["Cast", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


@dataclass(frozen=True)
class Cast:
    """Floating point is cast to ``dtype`` (None: to nothing) and back."""

    name: str
    dtype: Optional[tf.DType] = None

    def compress(self, tensor: tf.Tensor) -> Tuple[tf.Tensor, Optional[tf.DType]]:
        """Return ``tensor`` as ``dtype`` if it is of floating point, and what ``decompress`` needs."""
        if self.dtype is None or not tensor.dtype.is_floating or tensor.dtype == self.dtype:
            return tensor, None
        return tf.cast(tensor, self.dtype), tensor.dtype

    def decompress(self, tensor: tf.Tensor, ctx: Optional[Any]) -> tf.Tensor:
        """Return ``tensor`` in the type that it had before ``compress`` returned ``ctx``."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """What ``compression=`` takes; or anything else with ``compress(tensor)`` and ``decompress(tensor, ctx)``."""

    none = Cast("none")
    fp16 = Cast("fp16", tf.float16)
    bf16 = Cast("bf16", tf.bfloat16)


class Compressor:
    """The base class of Horovod for compressions of your own: static (or class) methods that do both ways.

    The verbs, tapes and optimizers take a class or an object that has both methods: they reduce what ``compress``
    returns, in its type, and return what ``decompress`` makes of that.

    >>> class Halves(Compressor):
    ...     @staticmethod
    ...     def compress(tensor):
    ...         return tensor / 2, None
    ...
    ...     @staticmethod
    ...     def decompress(tensor, ctx):
    ...         return tensor * 2
    """

    @staticmethod
    def compress(tensor: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        """Return what is reduced in place of ``tensor``, and what ``decompress`` needs to know of it."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the result that the reduced ``tensor`` stands for; ``ctx`` is from this rank's ``compress``."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Horovod's name of ``Compression.none``."""

    compress = staticmethod(Compression.none.compress)
    decompress = staticmethod(Compression.none.decompress)


class FP16Compressor(Compressor):
    """Horovod's name of ``Compression.fp16``."""

    compress = staticmethod(Compression.fp16.compress)
    decompress = staticmethod(Compression.fp16.decompress)


__dir__ = public_names(globals())
