"""``ddlrun``: start a program as N ranks, watch over them, and end them all when one fails.

It imports only the standard library and DDL's plain-data modules, so it starts in milliseconds. Read in this order:
cli (what was asked for) -> environ (what each rank is told) -> agent (starts and supervises) -> output, processes,
failures (its tools). ``ddl.run(function, np=2)`` calls a function on ranks: function.py.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from ddl.run.function import run as __wrapped__  # by which inspect.signature and help find it


class _Callable(types.ModuleType):
    """A package has no name beside its functions: ``ddl.run`` is both this one and what users call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return __wrapped__(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
