"""How often the operations of ranks are read: often enough that no ring wraps around, and never all the time."""

from __future__ import annotations

__all__ = ["TracePace"]

_LONGEST, _SHORTEST = 0.25, 0.02  # seconds between two looks
_FULL, _EMPTY = 0.4, 0.15  # parts of a ring that were new: look sooner, or later
_SHARE, _MOST = 9, 3  # a look is due so many times later than it took: a ninth of a core; a third if rings fill
_PAUSE = 0.05  # seconds until the next attempt if the last news have not been taken


class TracePace:
    """When the next look is due. ``next``: seconds of clock.now."""

    def __init__(self, now: float) -> None:
        self.next = now + _SHORTEST
        self._interval = 0.05  # until it is known how fast they are

    def looked(self, begin: float, cost: float, fill: float) -> None:
        """A look began at ``begin`` and took ``cost`` CPU seconds. ``fill``: the new part of the fullest ring."""
        if fill > _FULL:
            self._interval = max(_SHORTEST, self._interval / 2)
        elif fill < _EMPTY:
            self._interval = min(_LONGEST, self._interval * 1.5)
        self.next = begin + max(self._interval, (_MOST if fill > _FULL else _SHARE) * cost)

    def postpone(self, now: float) -> None:
        """No look can take place yet."""
        self.next = now + _PAUSE
