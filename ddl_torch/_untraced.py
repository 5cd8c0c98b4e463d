"""Keeps TorchDynamo out of the backend: torch calls its methods from C++, also while a compiled function runs.

Dynamo then compiles each Python frame that begins, and fails in these, because it does not know a group as a value.
``torch.compiler.disable`` would take longer in each call, and imports the compiler, which takes seconds.
"""

from __future__ import annotations

import functools
import inspect
from types import CodeType
from typing import Any, Callable, Set, TypeVar

import torch

from ddl_torch._compat import never_compile

__all__ = ["set_eval_frame", "untraced", "untraced_already"]

C = TypeVar("C", bound=type)
set_eval_frame: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame  # torch 2.1 can import no name of it

#: What torch calls of a group or a work though its name begins with an underscore.
_CALLED_BY_TORCH = frozenset(
    "_allgather_base _end_coalescing _get_backend _reduce_scatter_base _source_rank _start_coalescing".split()
)

_UNTRACED: Set[CodeType] = set()


def untraced(kind: C) -> C:
    """Have all methods of a class that torch calls, and what they call, run as they are."""
    for name, method in list(vars(kind).items()):
        called = not name.startswith("_") or name in _CALLED_BY_TORCH
        if called and inspect.isfunction(method) and method.__code__ not in _UNTRACED:
            setattr(kind, name, _untraced(method))
    return kind


def untraced_already(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``untraced`` leave a method alone that itself calls ``set_eval_frame``, as below."""
    never_compile(method.__code__)
    _UNTRACED.add(method.__code__)
    return method


def _untraced(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return method(*args, **kwargs)
        finally:
            set_eval_frame(before)

    return untraced_already(functools.wraps(method)(call))  # that code of all methods: Dynamo would begin with it
