"""Memory, descriptors and threads of the processes of a training, over time."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

__all__ = ["UsageHistory", "tenths"]


def usage_of(pid: int) -> Dict[str, int]:
    """Return kilobytes, descriptors and threads of a process; {} if it has ended."""
    try:
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    if "VmRSS:" not in status:
        return {}  # it is ending

    def number(name: str) -> int:
        return int(status.partition(f"\n{name}:")[2].split()[0])

    return {"kilobytes": number("VmRSS"), "descriptors": descriptors, "threads": number("Threads")}


class UsageHistory:
    """What the ranks, and the processes of the launcher, have used: a line every ``period`` seconds, also in ``path``.

    ``oldest`` is the process that is rank 0, since newcomers come last.
    """

    def __init__(
        self, path: Path, ranks: Callable[[], Sequence[int]], launcher: Callable[[], Sequence[int]], period: float
    ) -> None:
        self._path = path
        self.lines: List[Dict[str, int]] = []
        self._ranks, self._launcher, self._period = ranks, launcher, period
        self._begin = time.monotonic()
        self._due = 0.0

    def look(self) -> None:
        """Add a line if it is time, and there are ranks."""
        now = time.monotonic()
        if now < self._due:
            return
        ranks = [(pid, usage_of(pid)) for pid in self._ranks()]
        used = [(pid, usage) for pid, usage in ranks if usage]
        if not used or len(used) < len(ranks):
            return
        self._due = now + self._period
        own = [usage for usage in map(usage_of, self._launcher()) if usage]
        pid, oldest = used[0]
        line = {"seconds": int(now - self._begin), "ranks": len(used), "oldest": pid}
        line["ranks_kilobytes"] = sum(usage["kilobytes"] for _, usage in used)
        line.update({f"oldest_{name}": value for name, value in oldest.items()})
        line.update({f"launcher_{name}": sum(usage[name] for usage in own) for name in oldest})
        with self._path.open("a", encoding="ascii") as file:
            if not self.lines:
                print(*line, sep=",", file=file)
            print(*line.values(), sep=",", file=file)
        self.lines.append(line)

    @property
    def usual(self) -> List[Dict[str, int]]:
        """The lines with the most frequent number of ranks: with more of them, each has more connections."""
        counts = [line["ranks"] for line in self.lines]
        usual = max(set(counts), key=counts.count, default=0)
        return [line for line in self.lines if line["ranks"] == usual]

    @property
    def of_oldest(self) -> List[Dict[str, int]]:
        """Those of ``usual`` in which rank 0 was the process that was it for longest."""
        pids = [line["oldest"] for line in self.usual]
        longest = max(set(pids), key=pids.count, default=0)
        return [line for line in self.usual if line["oldest"] == longest]


def tenths(values: Sequence[float]) -> Tuple[float, float]:
    """Return the medians of the first and of the last tenth of values over time."""
    count = max(1, len(values) // 10)
    return statistics.median(values[:count]), statistics.median(values[-count:])
