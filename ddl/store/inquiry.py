"""``Inquiry``: the store asks all ranks of a communicator what they do, since one of them waits; see verdict.py.

Here is what they may answer, and the check of it: a malformed answer raises ``ProtocolError``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Set, Tuple

from ddl.store.deadlock import Wait
from ddl.store.messages import Message, integer, numbers, rows, seconds, text

__all__ = ["Inquiry", "checked_state", "checked_suspicion"]

_MOST_WAITS = 1000  # of one rank


@dataclass
class Inquiry:
    """One round of questions about operation ``seq`` of a communicator."""

    probe: int
    members: FrozenSet[int]
    deadline: float
    asker: int
    waiting: Set[int] = field(default_factory=set)
    suspects: Dict[int, Message] = field(default_factory=dict)
    states: Dict[int, Message] = field(default_factory=dict)
    extended: bool = False  # ranks have got more time to answer

    @property
    def final(self) -> bool:
        """Whether a rank has waited as long as it is to."""
        return any(suspect["final"] for suspect in self.suspects.values())

    def question(self, comm: int, seq: int) -> Message:
        """Return what members are asked."""
        return {"type": "probe", "probe": self.probe, "comm": comm, "seq": seq}

    def shortages(self) -> Dict[int, str]:
        """What ranks lack to make connections, of those that lack something."""
        answers = {**self.states, **self.suspects}
        return {rank: answers[rank]["shortage"] for rank in sorted(answers) if answers[rank]["shortage"]}

    def awaiting_gpus(self) -> List[int]:
        """Ranks that wait for their own GPU, which has not brought their data."""
        answers = {**self.states, **self.suspects}
        return [rank for rank in sorted(answers) if answers[rank]["awaits_gpu"]]

    def apart(self) -> Set[Tuple[int, int]]:
        """Return the pairs of ranks that do not hear each other, in both orders, as one of the two has said.

        None where a rank has not answered: its host may be gone for everybody.
        """
        answers = {**self.states, **self.suspects}
        if answers.keys() != self.members:
            return set()
        pairs = {(r, other) for r, said in answers.items() for other in self.members & said["unheard"] if other != r}
        return pairs | {(b, a) for a, b in pairs}

    def operations(self) -> Dict[int, str]:
        """What each rank says that it called, where it said so."""
        said = {rank: state["op"] for rank, state in self.states.items() if state["submitted"] >= 0}
        said.update({rank: suspect["op"] for rank, suspect in self.suspects.items()})
        return {rank: op for rank, op in sorted(said.items()) if op}


def checked_suspicion(rank: int, message: Message, size: int) -> Message:
    """Return what ``rank``, which waits in an operation of a job of ``size`` ranks, says of itself."""
    return {
        "op": text(rank, message, "op"),
        "waits": _waits(rank, message),
        "doing": text(rank, message, "doing", default=""),
        "seconds": seconds(rank, message, "seconds", default=0.0),
        "final": message.get("final") is True,
        "peer": integer(rank, message, "peer", low=-1, high=size - 1, default=-1),
        "reason": text(rank, message, "reason", default=""),
        "shortage": text(rank, message, "shortage", default=""),
        "awaits_gpu": message.get("awaits_gpu") is True,
        "unheard": numbers(rank, message, "unheard"),
    }


def checked_state(rank: int, message: Message) -> Message:
    """Return what ``rank`` answers to a question."""
    return {
        "submitted": integer(rank, message, "submitted", low=-1),  # -1: not a member of the communicator
        "op": text(rank, message, "op"),
        "waits": _waits(rank, message),
        "doing": text(rank, message, "doing", default=""),
        "shortage": text(rank, message, "shortage", default=""),
        "awaits_gpu": message.get("awaits_gpu") is True,
        "held": message.get("held") is True,
        "unheard": numbers(rank, message, "unheard"),
    }


def _waits(rank: int, message: Message) -> FrozenSet[Wait]:
    waits = rows(rank, message, "waits", width=3, most=_MOST_WAITS)
    return frozenset((comm, seq, needs) for comm, seq, needs in waits)
