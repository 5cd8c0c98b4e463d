"""Counts the messages and chunks that a plan moves. The steps alone are enough; the order of events does not matter."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Collection, Dict, Optional

from ddl.plan.ir import Kind, Plan

__all__ = ["Counts", "count"]

_MOVES: Dict[Kind, str] = {
    Kind.SEND: "chunks_sent",
    Kind.RECV: "chunks_received",
    Kind.RECV_REDUCE: "chunks_received",
    Kind.REDUCE_FROM: "chunks_read",
    Kind.COPY_FROM: "chunks_read",
    Kind.COPY_TO: "chunks_written",
}


@dataclass(frozen=True)
class Counts:
    """What one rank does in one run of its plan."""

    messages: int = 0  #: messages with data that it sends
    signals: int = 0  #: empty messages that it sends
    chunks_sent: int = 0  #: chunks in its messages
    chunks_received: int = 0  #: chunks in the messages that it receives
    chunks_read: int = 0  #: chunks that it reads directly from peers' memory
    chunks_written: int = 0  #: chunks that it writes directly into peers' memory

    @property
    def chunks_direct(self) -> int:
        """Chunks that it copies to or from peers' memory without a transport."""
        return self.chunks_read + self.chunks_written


def count(plan: Plan, peers: Optional[Collection[int]] = None) -> Counts:
    """Count what ``plan`` exchanges with ``peers``; None: with all ranks."""
    sums = {field.name: 0 for field in fields(Counts)}
    for channel in plan.channels:
        for step in channel:
            if step.kind not in _MOVES:
                continue
            partners = sum(peers is None or peer in peers for peer in step.peers)
            sums[_MOVES[step.kind]] += partners * step.count
            if step.kind is Kind.SEND:
                sums["messages" if step.count else "signals"] += partners
    return Counts(**sums)
