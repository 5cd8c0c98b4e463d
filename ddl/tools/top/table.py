"""What ``ddl top`` shows of a job, as ddlrun tells it (ddl/launch/job/job_display.py). Functions without I/O."""

from __future__ import annotations

import shlex
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

from ddl.launch.agent.job_watch import JobNow, status_text
from ddl.text.units import bytes_text, duration

__all__ = ["HEADINGS", "RankRow", "head", "lines", "rows"]

HEADINGS = ("rank", "host", "pid", "state", "step", "per s", "waiting", "late", "sent", "last operation")
_LEFT = {1, 3, 9}  # columns of text


class RankRow(NamedTuple):
    """A rank. ``is_late``: the others wait for it; ``is_odd``: it is stopped, or its communicator has failed."""

    cells: Sequence[str]  #: as many as ``HEADINGS``
    is_late: bool
    is_odd: bool


def head(picture: Mapping[str, Any]) -> str:
    """Return the line about the job."""
    job = dict(picture["job"])
    pid, command, elapsed = (job.pop(name) for name in ("pid", "command", "elapsed"))
    return f"ddlrun {pid}: {status_text(JobNow(**job), elapsed)}: {shlex.join(command)}"


def rows(picture: Mapping[str, Any]) -> List[RankRow]:
    """Return the ranks, by rank."""
    return [_row(rank, picture["job"]["unit"]) for rank in picture["ranks"]]


def lines(picture: Mapping[str, Any]) -> List[str]:
    """Return all of it as plain text."""
    cells = [HEADINGS, *(row.cells for row in rows(picture))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    table = ["  ".join(_aligned(line[c], widths[c], c) for c in range(len(HEADINGS))).rstrip() for line in cells]
    return [head(picture), "", *table]


def _aligned(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column in _LEFT else text.rjust(width)


def _row(rank: Mapping[str, Any], unit: str) -> RankRow:
    sample = rank["sample"]
    failed = bool(sample["failure"])
    cells = (
        str(sample["rank"]),
        sample["host"],
        str(sample["pid"]),
        "has failed" if failed else sample["state"],
        str(sample["steps"]) if unit == "step" else "-",
        _number(rank["per_second"]),
        "-" if rank["waiting"] is None else f"{100 * rank['waiting']:.0f} %",
        duration(rank["late"]) if rank["late"] else "-",
        bytes_text(sample["sent_bytes"]),
        _operation(sample),
    )
    return RankRow(cells, bool(rank["late"]), failed or str(sample["state"]).startswith("is "))


def _number(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.3g}"


def _operation(sample: Mapping[str, Any]) -> str:
    """Return the last operation, and for whom the rank waits if it has not ended."""
    if sample["failure"]:
        return str(sample["failure"])
    if not sample["call"] or sample["call_state"] in ("ended", "failed") or sample["awaited"] is None:
        return str(sample["call"])
    return f"{sample['call']}, waits for rank {sample['awaited']}"
