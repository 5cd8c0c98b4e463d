"""Lets all members stop between the same two steps, for a change that nobody's death has caused.

The store asks every member how many steps it has finished (``where``). From its answer on, a member begins at most one
more step before it hears where to stop. Members differ by one finished step at most, since each step has a collective.
So the store names a step that nobody can have passed: one more than the highest answer (``stop_at``). Every member says
when it has stopped there (``stopped``). Nothing is under way then, and no step is done twice.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from ddl.store.messages import Message, Outgoing, integer

__all__ = ["PlannedStop"]


class PlannedStop:
    """One stop of ``members``, with a number ``plan`` that no other stop has. Used by one thread; knows no time."""

    def __init__(self, plan: List[int], members: Tuple[int, ...]) -> None:
        self.plan = plan
        self.step: Optional[int] = None  #: after so many finished steps all stop
        self._finished: Dict[int, int] = {}
        self._waiting_for = dict.fromkeys(members)
        self._count = len(members)

    def begin(self) -> Outgoing:
        """Return the questions."""
        return [(member, {"type": "where", "plan": self.plan}) for member in self._waiting_for]

    @property
    def missing(self) -> List[int]:
        """Members that owe an answer: at which step they are, or, once that is known of all, that they have stopped."""
        return [m for m in self._waiting_for if self.step is not None or m not in self._finished]

    @property
    def late(self) -> List[int]:
        """Members that others wait for: those that owe an answer, but once all are told where to stop not all of them.

        As long as nobody has stopped, they are in that step, which may take its time: an operation in it has a deadline
        of its own, by which it is known who is late. Who has stopped has ended all operations of the step, so those
        that have not are no longer in any.
        """
        missing = self.missing
        return missing if self.step is None or len(missing) < self._count else []

    @property
    def complete(self) -> bool:
        """Whether all have stopped."""
        return self.step is not None and not self._waiting_for

    def answered(self, member: int, message: Message) -> Outgoing:
        """A member said ``at`` or ``stopped``. ``ProtocolError`` if that makes no sense."""
        step = integer(member, message, "step", low=0)
        if message.get("plan") != self.plan or member not in self._waiting_for:
            return []
        if message.get("type") == "stopped":
            if self.step is not None:
                del self._waiting_for[member]
            return []
        self._finished[member] = step
        if self.step is not None or self.missing:
            return []
        self.step = max(self._finished.values()) + 1
        message = {"type": "stop_at", "plan": self.plan, "step": self.step}
        return [(asked, message) for asked in self._waiting_for]
