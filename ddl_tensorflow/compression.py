"""``Compression``: how a tensor is written while it is reduced, as Horovod's ``compression=`` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

import tensorflow as tf

__all__ = ["Cast", "Compression"]


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
