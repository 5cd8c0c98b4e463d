"""The reduction operators, numbered as in the native core (csrc/reduce/reduce_op.h), which knows all but Adasum."""

from __future__ import annotations

import enum
from typing import Any, Union

from ddl.errors import InvalidArgument
from ddl.text.spelling import did_you_mean

__all__ = ["Adasum", "Average", "Max", "Min", "OpLike", "Product", "ReduceOp", "Sum", "parse_op"]


class ReduceOp(enum.IntEnum):
    """How values of different ranks are combined.

    ``Average`` is the sum divided by the number of ranks (integers: truncated towards zero). float16 and bfloat16
    accumulate in float32. For bool, ``Sum`` and ``Max`` are *any*, ``Product`` and ``Min`` are *all*. ``Adasum`` adds
    what is orthogonal and averages what is parallel (ddl/adapter/adasum.py); where it is not offered, it is refused.
    """

    Sum = 0
    Min = 1
    Max = 2
    Product = 3
    Average = 4
    Adasum = 5

    def __repr__(self) -> str:
        return f"ddl.{self.name}"  # what a user writes, in errors and in the signatures that help() shows


Sum = ReduceOp.Sum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product
Average = ReduceOp.Average
Adasum = ReduceOp.Adasum

#: What a verb takes as ``op``: an operator or its name.
OpLike = Union[ReduceOp, str]

_BY_NAME = {op.name.lower(): op for op in ReduceOp}


def parse_op(op: Any, verb: str = "") -> ReduceOp:
    """Return the operator that ``op`` is or names: ``ddl.Sum`` or "sum", in large or small letters.

    Raises ``InvalidArgument`` for anything else. Numbers are refused, also those of this enumeration: other libraries
    number their operators otherwise. ``verb``: what the error begins with.
    """
    if isinstance(op, ReduceOp):
        return op
    if isinstance(op, str) and op.lower() in _BY_NAME:
        return _BY_NAME[op.lower()]
    hint = did_you_mean(op, _BY_NAME) if isinstance(op, str) else ""
    raise InvalidArgument(
        f"{verb}{': ' if verb else ''}op={op!r} is no operator{hint}; pass ddl.Average, Sum, Min, Max, Product or "
        'Adasum, or a name such as "sum"'
    )
