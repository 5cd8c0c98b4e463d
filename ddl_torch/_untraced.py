"""Keeps TorchDynamo out of the backend: torch calls its methods from C++, also while a compiled function runs.

Dynamo then compiles each Python frame that begins, and fails in these, because it does not know a group as a value.
``torch.compiler.disable`` would take longer in each call, and imports the compiler, which takes seconds.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar

import torch

from ddl_torch._compat import never_compile

__all__ = ["untraced"]

C = TypeVar("C", bound=type)
set_eval_frame: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame  # torch 2.1 can import no name of it

#: What torch calls of a group or a work though its name begins with an underscore.
_CALLED_BY_TORCH = frozenset(
    "_allgather_base _end_coalescing _get_backend _reduce_scatter_base _source_rank _start_coalescing".split()
)


def untraced(kind: C) -> C:
    """Have all methods of a class that torch calls, and what they call, run as they are."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and (not name.startswith("_") or name in _CALLED_BY_TORCH):
            setattr(kind, name, _untraced(method))
    return kind


def _untraced(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = set_eval_frame(None)
        try:
            return method(*args, **kwargs)
        finally:
            set_eval_frame(before)

    never_compile(call.__code__)  # that of all methods: else Dynamo would begin with this frame
    return functools.wraps(method)(call)
