"""Ends a job whose ranks begin again and again without a step in between.

Where a rank is lost, the others form the next generation and go on. An operation may also fail while all ranks are
there: a network that refuses some connections, a defect. The same ranks then form the next generation. If nothing has
changed they fail at once, and would do so for ever. Here that is counted, slowed down, and ended with the cause.
"""

from __future__ import annotations

import time
from typing import Any, Dict, Optional, Tuple

from ddl import clock
from ddl.errors import CommunicatorError, LeftOut
from ddl.text.rank_names import FEW, listed
from ddl.text.units import counted

__all__ = ["Fruitless"]

_LEAST = 10  #: generations, before the ranks give up
_SECONDS = 60.0  #: for which a network may refuse connections, at least
_LONGEST_PAUSE = 1.0  #: between two generations, in seconds
_NEVER = (0, -1)
_SAID = 200  #: characters of an error that the other ranks are told; all that a rank says is limited


class Fruitless:
    """Counts generations of the same ranks that have finished no step. Used by the thread of the script."""

    def __init__(self) -> None:
        self._generation = 0  # that was formed last, with so many ranks and finished steps
        self._formed: Tuple[int, int] = _NEVER
        self._count = 0
        self._began = 0.0  # when the first of them failed

    def pause(self) -> None:
        """Wait before the next generation, if this one was as the one before."""
        if self._count:
            time.sleep(min(_LONGEST_PAUSE, 0.01 * 2**self._count))

    def says(self, generation: int, lost: Optional[CommunicatorError]) -> Dict[str, Any]:
        """Return what the ranks of the next generation have to know of this one, which has failed by ``lost``."""
        if generation != self._generation:  # of a job before this one
            self._count, self._formed = 0, _NEVER
        text = f"{type(lost).__name__}: {lost}"[:_SAID].encode("ascii", "replace").decode()  # JSON takes six for others
        error = None if lost is None else text
        seconds = clock.now() - self._began if self._count else 0.0
        return {"error": error, "count": self._count, "seconds": seconds, "formed": self._formed}

    def formed(self, generation: int, said: Dict[int, Dict[str, Any]], who: str, patience: float) -> None:
        """``generation`` is there, whose ranks have ``said`` that. ``patience``: of the job's store, in seconds.

        Raises ``LeftOut``, on all ranks, where they have begun again too often.
        """
        newcomers = any(each["newcomer"] for each in said.values())
        formed = (0 if newcomers else len(said), max(int(each["finished"]) for each in said.values()))
        errors = [f"rank {rank} has {each['error']}" for rank, each in said.items() if each["error"] is not None]
        # Ranks may have counted differently, as some were too late for a generation: rank 0's count is that of all.
        before, count, seconds = said[0], 0, 0.0
        if errors and formed == tuple(before["formed"]):
            count, seconds = int(before["count"]) + 1, float(before["seconds"])
        if count >= _LEAST and seconds >= min(_SECONDS, patience):
            raise LeftOut(
                f"{who} the job cannot go on: the same {counted(len(said), 'rank')} began again {count} times in "
                f"{seconds:.0f} s and finished no step. None of them is lost, so something between them is wrong. The "
                f"last errors: {listed(errors, FEW)}"
            )
        if count <= 1:
            self._began = clock.now()
        self._generation, self._count, self._formed = generation, count, formed
