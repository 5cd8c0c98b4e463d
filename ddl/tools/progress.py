"""Shows the progress of a long task and the remaining time, on stderr, because a program may read stdout.

On a terminal it is a bar of tqdm, if tqdm is installed; otherwise, and in logs, plain lines. A short task shows nothing
(``after``).
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Optional, Type

from ddl import clock

__all__ = ["Progress", "remaining_text"]


def remaining_text(seconds: float) -> str:
    """Return ``about 40 s left``, ``about 3 min left`` or ``about 2 h 5 min left``."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes < 90 else f"about {minutes // 60} h {minutes % 60} min left"


class Progress:
    """Counts the steps of a task. One thread uses it, in a ``with`` statement.

    ``total``: the number of steps; 0: not known yet. ``after``: seconds before anything is shown, and between two plain
    lines. ``seconds``: how long the task takes, if that is known; otherwise it is estimated from the steps.
    """

    def __init__(self, total: int = 0, *, after: float = 0.0, seconds: float = 0.0, name: str = "") -> None:
        self._stream = sys.stderr
        self._total = total
        self._after = after
        self._seconds = seconds
        self._name = f"{name}: " if name else ""
        self._begin = self._shown = clock.now()
        self._begun = 0  # steps
        self._bar: Any = None
        if self._stream.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total or None, file=self._stream, delay=after, leave=False, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def step(self, what: str, total: int = 0) -> None:
        """Begin the next step, called ``what``; the one before has ended. ``total``: the new number of steps, or 0."""
        self._total = total or self._total
        if self._bar is not None:
            self._bar.total = self._total or None
            self._bar.set_description(f"{self._name}{what}", refresh=False)
            self._bar.update(int(self._begun > 0))
            self._bar.refresh()
        self._begun += 1
        now = clock.now()
        if self._bar is None and now >= self._shown + self._after:
            self._shown = now
            remaining = self._remaining(now)
            time_text = f", {remaining_text(remaining)}" if remaining else ""
            print(f"{self._name}{what}{time_text}", file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Write a line that stays: why the task is longer than was said, for example."""
        if self._bar is not None:
            self._bar.write(f"{self._name}{text}", file=self._stream)
        else:
            print(f"{self._name}{text}", file=self._stream, flush=True)

    def _remaining(self, now: float) -> float:
        """Return the remaining seconds; 0 if they are not known."""
        taken, done = now - self._begin, self._begun - 1
        if self._seconds:
            return max(0.0, self._seconds - taken)
        return taken / done * max(0, self._total - done) if done else 0.0

    def close(self) -> None:
        """Remove the bar. Idempotent."""
        if self._bar is not None:
            self._bar.close()
