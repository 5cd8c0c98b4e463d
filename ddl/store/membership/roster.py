"""``Roster``: which processes are there, gone, about to join or asked to leave, and who would be the next members."""

from __future__ import annotations

from typing import Dict, Optional, Set

from ddl.store.membership.records import GenerationRecord
from ddl.store.messages import Message, Outgoing

__all__ = ["ASKED", "NO_STATE", "Roster"]

ASKED = "it was asked to leave"
_REMEMBERED = 64  # processes that were asked to leave: one that hears it late is to know why
NO_STATE = "no rank is left that has the state of the job"
_WITHOUT = "the others went on without it"


class Roster:
    """The processes of a job whose present generation is ``record``, by their incarnations. Used by one thread."""

    def __init__(self, record: GenerationRecord) -> None:
        self.record = record
        self.present: Dict[int, str] = {}  #: incarnation -> its host
        self.absent: Dict[int, str] = {}  #: incarnations that are in no later generation -> why
        self.newcomers: Dict[int, bool] = {}  #: incarnation -> whether it has caught up
        self.leaving: Set[int] = set()  #: those that were asked to
        self._asked: Set[int] = set(record.asked)  # those of them that have left

    def enter(self, record: GenerationRecord) -> Dict[int, str]:
        """``record`` is the present generation now. Return who is not in it any more, and why."""
        before, self.record = self.record, record
        gone = [member for member in before.members if member not in record.members]
        why = {m: self.absent.setdefault(m, ASKED if m in record.asked else _WITHOUT) for m in gone}
        for member in record.members:
            self.newcomers.pop(member, None)
        self.leaving -= self.absent.keys()  # who is about to join stays asked
        self._asked.update(record.asked)
        return why

    def exclude(self, incarnation: int) -> None:
        """It has come, and is in no generation: the others went on without it, or it was asked to leave."""
        self.absent.setdefault(incarnation, ASKED if incarnation in self._asked else _WITHOUT)

    def left_out(self, incarnation: int) -> Message:
        """Return what a process is told that is in no later generation."""
        message: Message = {"type": "left_out", "reason": self.absent[incarnation], "record": self.record.message()}
        return {**message, "asked": incarnation in self._asked}

    def tell_left_out(self) -> Outgoing:
        """Tell those that are in no generation any more. Not before what is under way is decided.

        They may cast votes of the dead of their hosts, and would take them along: one of them may even have this store.
        """
        gone = [i for i in self.present if i in self.absent and i not in self.record.members]
        return [(incarnation, self.left_out(incarnation)) for incarnation in gone]

    @property
    def missing(self) -> Set[int]:
        """Members that are in no later generation."""
        return self.absent.keys() & set(self.record.members)

    @property
    def nobody_has_the_state(self) -> bool:
        """Whether all members are gone: newcomers alone must not begin anew."""
        return self.absent.keys() >= set(self.record.members)

    @property
    def joining(self) -> int:
        """How many newcomers have caught up."""
        return sum(self.newcomers.values())

    def to_leave(self) -> Set[int]:
        """Members that leave with the next change: those that were asked to, but never all that have the job's state.

        A newcomer's state is older than theirs: alone it would undo steps.
        """
        leaving = self.leaving & set(self.record.members)
        return leaving if any(m not in self.absent and m not in leaving for m in self.record.members) else set()

    def successor(self, *, admits: bool, witness: bool) -> Optional[GenerationRecord]:
        """Return the next generation as it should be: survivors keep their order, newcomers come last.

        ``admits``: newcomers may come. None where no member is left.
        """
        leaving = self.to_leave()
        kept = [m for m in self.record.members if m not in self.absent and m not in leaving]
        if not kept:
            return None
        kept += [newcomer for newcomer, caught_up in self.newcomers.items() if caught_up and admits]
        asked = (*self.record.asked, *(m for m in self.record.members if m in leaving and m not in self.absent))
        return GenerationRecord(self.record.generation + 1, tuple(kept), witness, asked[-_REMEMBERED:])
