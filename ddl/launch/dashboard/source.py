"""What a server of the page asks: the job that runs (live.py), or the file of one that has ended (replay.py)."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Protocol

__all__ = ["PageSource"]


class PageSource(Protocol):
    """Its methods are called by the server's threads, a thread for each request."""

    mode: str  #: "live" or "replay"

    def story(self) -> bytes:
        """Return what there is to know at first, as JSON (story.py)."""

    def follow(self) -> Iterator[bytes]:
        """Yield server-sent events: the story and then each record; an empty line if nothing happens for seconds.

        It ends with the job, and for a viewer who is too far behind.
        """

    def moment(self, elapsed: float) -> Optional[bytes]:
        """Return the job as it was then, as JSON; None if that is not offered."""

    def history(self) -> Optional[bytes]:
        """Return the file of the job so far."""

    def dump(self) -> Dict[str, Any]:
        """Have the ranks dumped; return ``text`` for people, and the ``folder``."""
