"""The reduction operators, numbered as in the native core (csrc/reduce/dtype.h), which knows all but Adasum."""

from __future__ import annotations

import enum

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"]


class ReduceOp(enum.IntEnum):
    """How values of different ranks are combined.

    ``Average`` is the sum divided by the number of ranks (integers: truncated towards zero). float16 and bfloat16
    accumulate in float32. For bool, ``Sum`` and ``Max`` are *any*, ``Product`` and ``Min`` are *all*.
    ``Adasum`` adds what is orthogonal and averages what is parallel (ddl/adasum.py); where it is not offered, it is
    refused.
    """

    Sum = 0
    Min = 1
    Max = 2
    Product = 3
    Average = 4
    Adasum = 5


Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
Average = ReduceOp.Average
Adasum = ReduceOp.Adasum
