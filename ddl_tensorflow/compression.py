"""``Compression``: how a tensor is written while it is reduced, as ``compression=`` takes it; and its classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import tensorflow as tf

from ddl.adapter import compressor
from ddl.adapter.compressor import Compressor, NoneCompressor
from ddl_tensorflow._public import public_names

__all__ = ["Cast", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "casting"]


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
    """What ``compression=`` takes: these, their names, or what has ``compress(tensor)``, ``decompress(tensor, c)``."""

    none = Cast("none")
    fp16 = Cast("fp16", tf.float16)
    bf16 = Cast("bf16", tf.bfloat16)


def casting(compression: Any) -> Any:
    """Return what writes tensors: what ``compression`` is or names; None is "none". Raises ``InvalidArgument``."""
    return compressor.casting(compression, {c.name: c for c in (Compression.none, Compression.fp16, Compression.bf16)})


class FP16Compressor(Compressor):
    """Horovod's name of ``Compression.fp16``."""

    compress = staticmethod(Compression.fp16.compress)
    decompress = staticmethod(Compression.fp16.decompress)


__dir__ = public_names(globals())
