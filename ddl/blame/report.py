"""What ``ddl blame`` prints: the first finding with all its evidence, and a line for each other one."""

from __future__ import annotations

from typing import Iterator, List, Optional, Sequence

from ddl.blame.finding import Finding
from ddl.blame.view import JobView
from ddl.records.dump import JobEnd, RankDump
from ddl.records.layout import WORLDS
from ddl.text.rank_names import name_ranks
from ddl.text.units import counted

__all__ = ["report"]

_EVIDENCE = 12  # lines of the first finding
_OTHERS = 5  # findings


def report(dumps: Sequence[RankDump], end: Optional[JobEnd], findings: Sequence[Finding]) -> List[str]:
    """Return the lines about a job: what is there, the findings, and what to do."""
    view = JobView(dumps, end)
    return [*_what_is_there(view), *(_findings(findings) if findings else [_healthy(view)])]


def _what_is_there(view: JobView) -> Iterator[str]:
    if view.missing:
        ranks = name_ranks(sorted(map(view.rank, view.missing)))
        yield f"{counted(len(view.members), 'rank')}; there is no dump of {ranks}"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    first = findings[0]
    yield f"{first.kind}: {first.sentence}"
    yield from (f"    {line}" for line in first.evidence[:_EVIDENCE])
    yield f"    what to do: {first.advice}"
    for finding in findings[1 : 1 + _OTHERS]:
        yield f"also {finding.kind}: {finding.sentence}"
    more = len(findings) - 1 - _OTHERS
    if more > 0:
        yield f"and {more} more"


def _healthy(view: JobView) -> str:
    last = max(
        (record.submitted for n in view.dumps for record in view.communicators(n) if record.number % WORLDS == 0),
        default=0,
    )
    who = f"all {len(view.members)} ranks" if not view.missing else f"the {len(view.dumps)} ranks with a dump"
    return f"no rank is to blame: {who} do operation #{last} or compute"
