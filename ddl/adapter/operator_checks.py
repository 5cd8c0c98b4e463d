"""Refuses operators that cannot combine elements of a type, or gradients: alike for all frameworks."""

from __future__ import annotations

import math
from typing import Any

from ddl.errors import InvalidArgument
from ddl.reduce_op import Adasum, Average, ReduceOp, Sum

__all__ = ["check_gradient_op", "check_predivide", "check_type"]


def check_type(verb: str, dtype: Any, kind: str, op: ReduceOp, adasum: str) -> None:
    """Raise ``InvalidArgument`` if elements of the type cannot be combined by ``op``.

    ``kind``: numpy's letter for the type: "f", "i", "u", "c", "b"; anything else cannot be added up. ``adasum``: the
    kinds that the framework has Adasum for.
    """
    if kind not in "fiucb":
        raise InvalidArgument(f"{verb}: {dtype} can be moved, but not added up; cast it to float32")
    if op == Adasum:
        if kind not in adasum:
            needs = "needs floating point, not" if adasum else "does not take"
            raise InvalidArgument(f"{verb}: op=Adasum {needs} {dtype}")
    elif kind == "c" and op not in (Average, Sum):
        raise InvalidArgument(f"{verb}: complex numbers can be averaged and summed; op={op!r} is not defined for them")
    if kind == "b" and op == Average:
        raise InvalidArgument(f"{verb}: truth values have no average; use op=Sum (any) or op=Min (all)")


def check_gradient_op(op: Any) -> None:
    """Raise ``InvalidArgument`` unless an optimizer can combine gradients by ``op``."""
    if op not in (Average, Sum, Adasum):
        raise InvalidArgument(f"op={op!r}; gradients can be combined by ddl.Average, ddl.Sum and ddl.Adasum")


def check_predivide(factor: float, op: ReduceOp) -> None:
    """Raise ``InvalidArgument`` if gradients cannot be divided by ``factor`` before they are combined by ``op``."""
    if not 0 < factor < math.inf:
        raise InvalidArgument(f"gradient_predivide_factor={factor} must be a number above 0")
    if factor != 1 and op != Average:
        raise InvalidArgument(f"gradient_predivide_factor={factor} needs op=ddl.Average, not {op!r}; a sum has no use")
