"""What DDL does when the process ends: it runs after the exit functions of the program, so these may still use the job.

Python calls the function that was registered last first. So this registers itself when ``ddl`` is imported, and not
when a job begins; DDL's own parts register here.
"""

from __future__ import annotations

import atexit
import traceback
from typing import Any, Callable, List, Tuple

__all__ = ["register", "unregister"]

_functions: List[Tuple[Callable[..., object], Tuple[Any, ...]]] = []


def register(function: Callable[..., object], *args: Any) -> None:
    """Call ``function(*args)`` when the process ends, before what was registered here earlier."""
    _functions.append((function, args))


def unregister(function: Callable[..., object]) -> None:
    """Call ``function`` no more when the process ends, however often it was registered."""
    _functions[:] = [(known, args) for known, args in _functions if known != function]


def _run() -> None:
    while _functions:
        function, args = _functions.pop()
        try:
            function(*args)
        except Exception:  # as atexit does: the others are called, too
            traceback.print_exc()


atexit.register(_run)
