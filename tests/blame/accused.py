"""Checks of findings, and a job of four ranks whose others have lost rank 2."""

from __future__ import annotations

from typing import List, Sequence

from blame.fabricated import call, job

from ddl.blame.finding import Finding
from ddl.records.dump import RankDump

LOST = "PeerLost: [rank 0/4 host a] allreduce(4096 x float32, sum): lost rank 2 (host b): "


def only(findings: Sequence[Finding], kind: str, *ranks: int) -> Finding:
    """Return the finding, which is the only one, of this kind and about these ranks."""
    assert [(finding.kind, finding.ranks) for finding in findings] == [(kind, ranks)]
    return findings[0]


def lost(why: str, **of_rank_2) -> List[RankDump]:
    """Three ranks that have lost rank 2, of which rank 1 had not called the operation yet."""
    calls = [[call(6), call(7, "failed", begun=70.0, ended=71.0)] for _ in range(4)]
    calls[1] = calls[2] = [call(6)]
    failed = {"failure": LOST + why, "closed": 99.0}
    return job(
        calls,
        records={0: failed, 1: failed, 3: failed},
        dumps={**{rank: {"exit": 1} for rank in (0, 1, 3)}, 2: {"host": "b", **of_rank_2}},
    )
