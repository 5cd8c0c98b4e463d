"""``SyncBatchNormalization``: batch normalisation over the batches of all ranks, as if one process had all of it."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import keras
import tensorflow as tf

import ddl
from ddl_tensorflow._keras_backend import need_tensorflow
from ddl_tensorflow.verbs import allreduce

__all__ = ["SyncBatchNormalization"]


@keras.saving.register_keras_serializable(package="ddl_tensorflow")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Normalise by mean and variance over the batches of all ranks. A ``keras.layers.BatchNormalization``.

    Takes what that takes, but ``renorm`` and ``synchronized`` (of ``tf.distribute``); ``fused`` is Horovod's, and can
    only be False. Batches may differ in size by rank, down to none at all, and have masks. In training, the forward
    pass makes two small all-reduces and the backward pass makes two: all are collective, so every rank runs the layer
    equally often. Else nothing is sent. 16-bit inputs are added up in float32, ranks in float64.

    The gradients of gamma and beta are those of this rank's batch; ``DistributedOptimizer`` averages them like all
    others. A loss that is a mean over the batch gives the gradients of one process if batches are equally large.

    A saved model loads where ``ddl_tensorflow.SyncBatchNormalization`` has been imported. Without DDL, a class
    of that name that derives from ``keras.layers.BatchNormalization`` takes its place (Keras finds weights by the name
    of the class): ``custom_objects={"ddl_tensorflow>SyncBatchNormalization": TheClass}``.
    Raises ``InvalidArgument`` for what it does not take, ``InvalidState`` before ``init``, and ``ConfigError`` where
    Keras does not run on TensorFlow.

    >>> model.add(ddl_tensorflow.SyncBatchNormalization())
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        need_tensorflow("SyncBatchNormalization")
        for name, value in (("fused", fused), *((name, kwargs.get(name)) for name in ("renorm", "synchronized"))):
            if value:
                raise ddl.InvalidArgument(f"SyncBatchNormalization: {name}={value!r} is not possible; leave it out")
        super().__init__(**kwargs)
        self.supports_jit = False  # so that Keras does not choose XLA, which cannot call DDL

    def get_config(self) -> Dict[str, Any]:
        """Return the arguments of ``keras.layers.BatchNormalization``."""
        config: Dict[str, Any] = super().get_config()
        return config

    def _moments(self, inputs: tf.Tensor, mask: Any) -> Tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance of each channel of all ranks' ``inputs``, of those that ``mask`` leaves.

        The variance comes from a second pass: a difference of two large sums would cancel out.
        """
        axes = self._reduction_axes
        kept = None if mask is None else tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
        totals = tf.reduce_sum(_where(kept, inputs), axes)
        if kept is None:
            counts = tf.cast(tf.fill(tf.shape(totals), tf.size(inputs) // tf.size(totals)), totals.dtype)
        else:
            counts = tf.reduce_sum(tf.cast(kept, inputs.dtype), axes)
        counts, totals = tf.unstack(_sum(tf.stack([counts, totals])))
        counts = tf.stop_gradient(tf.maximum(counts, 1.0))
        mean = tf.cast(totals / counts, inputs.dtype)
        shape = [1] * inputs.shape.rank
        shape[self.axis] = -1
        deviations = _where(kept, inputs - tf.reshape(mean, shape))
        variance = _sum(tf.reduce_sum(tf.square(deviations), axes)) / counts
        return mean, tf.cast(variance, inputs.dtype)


def _where(kept: Any, x: tf.Tensor) -> tf.Tensor:
    return x if kept is None else tf.where(kept, x, tf.zeros([], x.dtype))


def _sum(x: tf.Tensor) -> tf.Tensor:
    """Return the sum of all ranks' ``x``, as float64, the same bits on every rank."""
    return allreduce(tf.cast(x, tf.float64), op=ddl.Sum)
