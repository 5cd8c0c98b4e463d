"""``Finding``: one cause, with its evidence. The kinds of causes, in the order in which they are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence, Tuple

from ddl.errors import InternalError

__all__ = ["KINDS", "Finding", "last_words"]

#: What explains most comes first: a rank that is dead also keeps others waiting, and never the other way round.
KINDS = (
    *("launcher lost", "out of memory", "full disk", "not finite", "called something else", "host lost", "hosts apart"),
    *("dead", "stopped"),
    *("stuck in a system call", "deadlock", "never called", "stuck in user code", "slow"),
    *("link down", "slow link", "unknown"),
)
_LAST_WORDS = 4  # lines


@dataclass(frozen=True)
class Finding:
    """A cause of what is wrong with a job."""

    kind: str  #: of ``KINDS``
    ranks: Tuple[int, ...]  #: that are to blame; several in a deadlock, on a lost host, or if nobody knows which
    host: str  #: theirs; empty: several, or not known
    sentence: str  #: who and what
    evidence: Tuple[str, ...]  #: lines, with numbers
    advice: str  #: what to do now

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InternalError(f"there is no kind {self.kind!r} of findings")


def last_words(findings: Sequence[Finding]) -> List[str]:
    """Return at most four lines about the first of ``findings``: who, why, and what to do. [] if there is none."""
    if not findings:
        return []
    first = findings[0]
    evidence = list(first.evidence[: _LAST_WORDS - 2])
    return [f"{first.kind}: {first.sentence}", *evidence, f"what to do: {first.advice}"]
