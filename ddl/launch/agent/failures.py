"""Which rank failed first, and how ddlrun says so. Functions without I/O.

When a rank dies, the others fail because of it, often within a millisecond. Then chance decides which process ends
first. The store's verdict names the rank in which the failure began. Without a verdict (the program may not use DDL at
all), the rank that ended first counts. Of ranks that ended at the same moment, one that a signal has killed counts.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any, Iterable, List, Mapping, Optional

from ddl.text.signals import signal_name

__all__ = ["Exit", "ends_kept", "first_failure", "report"]


@dataclass(frozen=True)
class Exit:
    """How a rank's process ended. ``code`` is its status, or minus the number of the signal that killed it."""

    rank: int
    pid: int
    code: int
    seen: int  #: number of the look at which it was found; equal means: order unknown
    stopped: bool = False  #: ddlrun had begun to stop it: its end says nothing
    host: str = ""  #: where it ran, in a job of several hosts
    out_of_memory: Optional[str] = None  #: of one that SIGKILL has ended: as ``OutOfMemory.words`` returns it

    @property
    def failed(self) -> bool:
        """Whether it failed by itself."""
        return self.code != 0 and not self.stopped

    @property
    def status(self) -> int:
        """The exit status by which a shell would tell of it."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        who = f"rank {self.rank} ({f'host {self.host}, ' if self.host else ''}pid {self.pid})"
        if self.code >= 0:
            return f"{who} exited with status {self.code}"
        return f"{who} was killed by signal {-self.code} ({signal_name(-self.code)})" + (
            ": out of memory" if self.out_of_memory else ""
        )


def ends_kept(size: int) -> int:
    """Return of how many lost ranks an elastic job of ``size`` ranks knows how they ended. It may lose any number."""
    return max(64, 2 * size)


def first_failure(exits: Iterable[Exit], verdict: Optional[Mapping[str, Any]]) -> Optional[Exit]:
    """Return the exit that the job's failure started with, None if no rank failed by itself."""
    failed = [entry for entry in exits if entry.failed]
    culprit = verdict["culprit"] if verdict is not None else -1
    return min(failed, key=lambda e: (e.rank != culprit, e.seen, e.code >= 0, e.rank), default=None)


def report(entry: Exit, verdict: Optional[Mapping[str, Any]], last_lines: Iterable[str], above: bool = False) -> str:
    """Return the last words of ddlrun on a failed job. ``above``: the last lines are the last that it has printed."""
    lines: List[str] = []
    if verdict is not None and verdict["culprit"] not in (-1, entry.rank):
        # For example a rank that was silent, and had to be stopped: it has no exit of its own to show.
        lines.append(f"ddlrun: the failure began with rank {verdict['culprit']}: {verdict['reason']}")
    said = f"ddlrun: {entry}{_doubt(entry)}"
    tail = [f"    {line}" for line in last_lines]
    if tail and above:
        lines.append(f"{said}; its last lines on stderr are those above")
        return "\n".join(lines)
    lines.append(said + ("; its last lines on stderr:" if tail else ""))
    return "\n".join(lines + tail)


def _doubt(entry: Exit) -> str:
    """Return what is to be added of SIGKILL, if it is not known that the kernel sent it."""
    if entry.code != -signal.SIGKILL or entry.out_of_memory:
        return ""
    return ": out of memory? 'dmesg' tells, as root" if entry.out_of_memory is None else ", not for want of memory"
