"""What ranks and the store say to one another about failures, for tests of the verdict's state machine."""

from __future__ import annotations

from typing import Any, List

from ddl.store.messages import Message, Outgoing
from ddl.store.verdict import JobVerdicts

DIED = "its process ended (connection closed without goodbye)"
LEFT = "it has shut down (its program ended)"


def job(size: int = 4) -> JobVerdicts:
    verdict = JobVerdicts(size)
    for rank in range(size):
        assert verdict.joined(rank, 0.0) == []
    return verdict


def fail(comm: int, kind: str, culprit: int, reason: str) -> Message:
    return {"type": "fail", "comm": comm, "kind": kind, "culprit": culprit, "reason": reason}


def told(ranks: List[int], message: Message) -> Outgoing:
    return [(rank, message) for rank in ranks]


def lost(peer: int, comm: int = 0, reason: str = "connection reset") -> Message:
    return {"type": "suspect", "comm": comm, "seq": 1, "kind": "lost", "peer": peer, "reason": reason, "op": "x"}


def stalled(op: str = "allreduce", seq: int = 7, *, final: bool = False, **more: Any) -> Message:
    """Return the message of a rank that has waited for 10 s."""
    message = {"type": "suspect", "comm": 0, "seq": seq, "kind": "stalled", "op": op, "final": final, "seconds": 10.0}
    return {**message, **more}


def state(probe: int = 1, submitted: int = 7, op: str = "allreduce", **more: Any) -> Message:
    return {"type": "state", "probe": probe, "submitted": submitted, "op": op, **more}


def probe(comm: int = 0, seq: int = 7, number: int = 1) -> Message:
    return {"type": "probe", "probe": number, "comm": comm, "seq": seq}


def stall(text: str, others: int = 0, seq: int = 7) -> Message:
    return {"type": "stall", "comm": 0, "seq": seq, "others": others, "text": text, "seconds": 10.0}
