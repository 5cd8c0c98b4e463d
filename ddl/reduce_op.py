"""The reduction operators, numbered as in the native core (csrc/reduce/dtype.h)."""

from __future__ import annotations

import enum

__all__ = ["Average", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(enum.IntEnum):
    """How values of different ranks are combined.

    ``Average`` is the sum divided by the number of ranks (integers: truncated towards zero). float16 and bfloat16
    accumulate in float32. For bool, ``Sum`` and ``Max`` are *any*, ``Product`` and ``Min`` are *all*.
    """

    Sum = 0
    Min = 1
    Max = 2
    Product = 3
    Average = 4


Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
Average = ReduceOp.Average
