"""The one clock that all of DDL asks. Tests shift it, so that hours pass in no time.

It counts seconds that only grow, as ``time.monotonic``; processes of one host have the same, and so has the core
(``now_ns`` in csrc/base/clock.h). Only differences mean anything. Times that people read are ``time.time``'s.
"""

from __future__ import annotations

import time

__all__ = ["now", "shift"]

_shift = 0.0


def now() -> float:
    """Return the time of now, in seconds."""
    return time.monotonic() + _shift


def shift(by: float) -> None:
    """Let the clock of this process jump ahead by so many seconds. For tests; ``_core.shift_clock`` is the core's."""
    global _shift
    _shift += by
