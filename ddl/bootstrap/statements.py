"""What the agent tells the store of an operation: that this rank waits in it, has failed in it, or what it has called.

ddl/store/verdict.py explains the fields of these messages. The agent sends them (agent.py).
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from ddl import _core
from ddl.bootstrap.agent_records import Member
from ddl.bootstrap.whereabouts import Whereabouts

__all__ = ["own_failure", "state", "suspicion"]


def own_failure(member: Member, report: _core.Report, culprit: int) -> Dict[str, Any]:
    """Say that the communicator ``member`` has failed here, by ``culprit``: a world rank, or -1."""
    return {**_about(member, report), "type": "fail", "kind": report.kind, "culprit": culprit}


def suspicion(member: Member, report: _core.Report, culprit: int, here: Whereabouts, shortage: str) -> Dict[str, Any]:
    """Say that an operation of ``member`` makes no progress, or that a peer of it is lost."""
    message = {**_about(member, report), "type": "suspect", "kind": report.type, "seq": report.sequence}
    message.update(peer=culprit, waits=here.waits, doing=here.doing, seconds=report.waited)
    message.update(op=report.operation, final=report.final, shortage=shortage)
    message.update(awaits_gpu=member.core.awaits_gpu(report.sequence), unheard=_unheard(member))
    return message


def _about(member: Member, report: _core.Report) -> Dict[str, Any]:
    return {"comm": member.number, "reason": report.reason, "members": list(member.ranks)}


def state(member: Optional[Member], probe: Dict[str, Any], here: Whereabouts, shortage: str) -> Dict[str, Any]:
    """Answer the question ``probe`` about a communicator; ``member`` is None if it is not here.

    ``here`` is from before: what has not been called now had not been called when the threads slept.
    """
    submitted = member.core.submitted if member is not None else 0
    return {
        "type": "state",
        "probe": probe["probe"],
        "submitted": submitted,
        "op": member.core.operation_text(probe["seq"]) if member is not None else "",
        "waits": here.waits,
        "doing": here.doing,
        "shortage": shortage,
        "awaits_gpu": member is not None and member.core.awaits_gpu(probe["seq"]),
        "unheard": _unheard(member),
    }


def _unheard(member: Optional[Member]) -> List[int]:
    """Return the processes to which nothing of this one gets through."""
    return [] if member is None else [member.ranks[peer] for peer in member.core.silent_peers]
