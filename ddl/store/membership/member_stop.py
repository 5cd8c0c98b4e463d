"""A member's side of a planned stop (planned_stop.py): how far its script may go, and what the store is told of that.

When the store asks where the member is (``where``), the script may begin one more step, and not another one before the
store has said where all stop (``stop_at``). There it waits for the next generation.
"""

from __future__ import annotations

from typing import List, Optional

from ddl.errors import ProtocolError
from ddl.store.messages import Message, integer

__all__ = ["MemberStop"]


class MemberStop:
    """Where the script of ``member`` stops, if it is to. Used by one thread at a time; knows no time.

    Messages that are returned are for the store.
    """

    def __init__(self, member: int) -> None:
        self.finished = 0  #: steps that the script has finished
        self.was_told = False  #: the store knows that the script has stopped
        self._member = member
        self._plan: List[int] = []  # of the last planned stop
        self._hold: Optional[int] = None  # so many finished steps, and not another one
        self._stop_at: Optional[int] = None
        self._waited = (-1, -1)  # the generation and the finished steps with which it last waited to begin another one

    def heard(self, message: Message) -> List[Message]:
        """The store said ``where`` or ``stop_at``. ``ProtocolError`` if it makes no sense."""
        plan = message.get("plan")
        if not isinstance(plan, list) or len(plan) != 3 or not all(type(part) is int for part in plan):
            raise ProtocolError(f"the store plans {plan!r:.100}, which makes no sense")
        if message["type"] == "where" and plan > self._plan:
            self._plan, self._hold, self._stop_at, self.was_told = plan, self.finished + 1, None, False
            return [{"type": "at", "plan": plan, "step": self.finished}]
        if message["type"] == "stop_at" and plan == self._plan:
            self._stop_at, self._hold = integer(self._member, message, "step", low=self.finished), None
            return self._tell_if_due()
        return []

    def step_finished(self, finished: int, generation: int) -> List[Message]:
        """The script has finished so many steps. ``may_begin`` tells whether it may begin another one."""
        self.finished = finished
        if not self.may_begin:
            self._waited = (generation, finished)
        return self._tell_if_due()

    @property
    def may_begin(self) -> bool:
        """Whether the script may begin another step now; else it waits for the store, or for a generation."""
        if self._stop_at is not None:
            return self.finished < self._stop_at
        return self._hold is None or self.finished < self._hold

    def delays(self, generation: int) -> bool:
        """Whether the script waits to begin a step of ``generation``, or had to before the step that it is in."""
        return not self.may_begin or self._waited == (generation, self.finished)

    @property
    def is_planned(self) -> bool:
        """Whether the script is to stop, now or soon, for a planned change."""
        return self._hold is not None or self._stop_at is not None

    @property
    def is_reached(self) -> bool:
        """Whether the script is where all stop for a planned change."""
        return self._stop_at is not None and self.finished >= self._stop_at

    def drop(self) -> None:
        """Stop nowhere: the store that planned it is not followed any more, or its change has come.

        Also a member that hears of a new store before it misses the old one: it alone would stop, and the others wait.
        """
        self._plan, self._hold, self._stop_at, self.was_told = [], None, None, False

    def _tell_if_due(self) -> List[Message]:
        if self._stop_at is None or self.was_told or self.finished < self._stop_at:
            return []
        self.was_told = True
        return [{"type": "stopped", "plan": self._plan, "step": self.finished}]
