"""``Inquiry``: the store asks all ranks of a communicator what they do, since one of them waits; see verdict.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Set

from ddl.store.messages import Message

__all__ = ["Inquiry"]


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

    def operations(self) -> Dict[int, str]:
        """What each rank says that it called, where it said so."""
        said = {rank: state["op"] for rank, state in self.states.items() if state["submitted"] >= 0}
        said.update({rank: suspect["op"] for rank, suspect in self.suspects.items()})
        return {rank: op for rank, op in sorted(said.items()) if op}
