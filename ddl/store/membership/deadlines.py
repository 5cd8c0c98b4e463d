"""What the store waits for, until when; and what it does with deadlines that it has itself slept through."""

from __future__ import annotations

from typing import Optional

__all__ = ["Deadlines"]

STOPPED = 0.1  #: seconds by which a deadline is seen too late if this process itself was stopped


class Deadlines:
    """Moments of which each is None while nobody waits for it. Used by one thread."""

    def __init__(self) -> None:
        self.phase: Optional[float] = None  #: the phase has lasted too long
        self.again: Optional[float] = None  #: voters are asked again
        self.awaited: Optional[float] = None  #: members have come to an elected store
        self._gave_time = False  # and no deadline was seen in time since

    def next(self) -> Optional[float]:
        """Return the first of them."""
        return min((t for t in (self.phase, self.again, self.awaited) if t is not None), default=None)

    def slept_through(self, now: float, grace: float) -> bool:
        """Whether this process was stopped when one was due: then others were not late, as nobody has heard them.

        All are put off by ``grace`` seconds then, once: on a crowded machine every one may be seen late.
        """
        due = self.next()
        if due is None or now - due <= STOPPED or self._gave_time:
            self._gave_time = self._gave_time and due is not None and now < due
            return False
        self._gave_time, later = True, now + grace
        self.phase = self.phase and max(self.phase, later)
        self.again = self.again and max(self.again, later)
        self.awaited = self.awaited and max(self.awaited, later)
        return True
