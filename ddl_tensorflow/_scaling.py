"""Products with numbers of Python that are rounded once. ``tf.cast(factor, dtype)`` would round the factor first.

That would turn a half into 0 for integers, and keep only 24 bits of the factor for float64, and 8 for bfloat16.
"""

from __future__ import annotations

import tensorflow as tf

__all__ = ["scaled", "sums_of_rows"]


def scaled(tensor: tf.Tensor, factor: float, divisor: int = 1) -> tf.Tensor:
    """Return ``tensor * factor / divisor`` in the type of ``tensor``; integers as float64, truncated.

    Types of 16 bits are computed as float32. Integers that are only divided are divided as integers.
    """
    dtype = tensor.dtype
    if factor == divisor == 1:
        return tensor
    if dtype.is_integer and factor == 1:
        return tf.cast(tf.truncatediv(tf.cast(tensor, tf.int64), divisor), dtype)
    wide = tf.float64 if dtype.is_integer or dtype.is_bool else tf.float32 if dtype.size == 2 else dtype
    product = tf.cast(tensor, wide) * tf.constant(factor, wide)
    return tf.cast(product / tf.constant(divisor, wide), dtype)


def sums_of_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return the same with each index once: its rows, which are integers, are added up as int64."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(tf.cast(slices.values, tf.int64), places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)
