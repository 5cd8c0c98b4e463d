"""By which signals ranks are ended, and when: that of a host's ranks (host_ranks.py), or of a job (cluster_job.py)."""

from __future__ import annotations

import signal
from typing import Optional

from ddl import clock
from ddl.launch.agent import grace

__all__ = ["EndPlan"]

_GIVE_UP = 2.0  # seconds after the last signal


class EndPlan:
    """``seconds``: of --grace, or None. ``gives_up``: behind the last signal comes a 0, for those that still run."""

    def __init__(self, seconds: Optional[float], *, gives_up: bool = False) -> None:
        self._seconds = seconds
        self._gives_up = gives_up
        self._due: grace.Due = []
        self.stop_signal = 0  #: by which somebody wants them to stop
        self.begun = False  #: a signal has been sent to the ranks: how they end says nothing any more

    @property
    def goes_on(self) -> bool:
        """Whether nobody has begun to stop the ranks."""
        return not self.stop_signal and not self.begun

    @property
    def next(self) -> Optional[float]:
        """When the next signal is due."""
        return self._due[0][0] if self._due else None

    @property
    def is_due(self) -> bool:
        """Whether a signal is to be sent now."""
        return bool(self._due) and self._due[0][0] <= clock.now()

    def take(self) -> int:
        """Return the next signal, which is sent now."""
        return self._due.pop(0)[1]

    def follow(self, due: grace.Due) -> None:
        """Plan these signals, and no others."""
        last, _ = due[-1]
        self._due = [*due, (last + _GIVE_UP, 0)] if self._gives_up else due

    def stop(self, number: int) -> None:
        """Somebody wants the ranks to stop: pass that on, and insist. Told twice, stop at once."""
        now = clock.now()
        if self.stop_signal:
            self.follow([(now, signal.SIGKILL)])
        else:
            self.stop_signal = number
            self.follow(grace.when_told(number, now, self._seconds))

    def cut_off(self) -> None:
        """Nobody is there any more who could say how it goes on: end the ranks as if told to."""
        self.follow(grace.when_told(signal.SIGTERM, clock.now(), self._seconds))

    def fail(self) -> bool:
        """A rank has failed: the others get a moment to fail by themselves. Return whether nothing was planned yet."""
        if self._due or self.begun:
            return False
        self.follow(grace.when_failed(clock.now(), self._seconds))
        return True

    def give_up(self) -> None:
        """The job cannot go on at all."""
        self.follow(grace.when_given_up(clock.now(), self._seconds))
