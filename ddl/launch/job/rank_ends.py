"""How the ranks of a job on several hosts have ended, as their agents tell ddlrun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from ddl.launch.agent.failures import Exit, report
from ddl.launch.job.cluster_host import ClusterHost
from ddl.records.dump import JobEnd

__all__ = ["RankEnds"]


@dataclass(frozen=True)
class _RankEnd:
    """exit: how the process ended. tail: its last lines on stderr. source: whose lines they are, for a sink."""

    exit: Exit
    tail: List[str]
    source: Tuple[int, ...]


class RankEnds:
    """All ends that were heard of, or (``keep_last``) the last ones."""

    def __init__(self) -> None:
        self._ends: Dict[int, _RankEnd] = {}  # by rank, in the order in which they were heard of
        self._looks = 0

    def add(self, host: ClusterHost, message: Mapping[str, Any], stopping: bool) -> Exit:
        """Take what an agent says of a rank's end. ``stopping``: ddlrun had begun to stop all ranks."""
        self._looks += 1
        rank, pid, code = (int(message[name]) for name in ("rank", "pid", "code"))
        stopped = bool(message["stopped"]) or stopping
        entry = Exit(rank, pid, code, self._looks, stopped, host.name, message["out_of_memory"])
        self._ends[rank] = _RankEnd(entry, message["tail"], host.source(message["source"]))
        return entry

    def keep_last(self, count: int) -> None:
        """Forget all but the last ``count``."""
        for rank in list(self._ends)[:-count]:
            del self._ends[rank]

    @property
    def exits(self) -> List[Exit]:
        """How the processes ended."""
        return [end.exit for end in self._ends.values()]

    @property
    def ranks(self) -> Set[int]:
        """Those that have ended."""
        return set(self._ends)

    def job_end(self, size: int, verdict: Optional[Mapping[str, Any]], failed: Optional[Exit]) -> JobEnd:
        """Return what dumps are told of the end of a job of ``size`` ranks. ``failed``: the exit that it began with."""
        return JobEnd(
            size=size,
            verdict=verdict,
            first=None if failed is None else failed.rank,
            exits={entry.rank: str(entry) for entry in self.exits if not entry.stopped},
            last_lines={rank: end.tail for rank, end in self._ends.items()},
        )

    def report(self, failed: Exit, verdict: Optional[Mapping[str, object]], last_source: object) -> str:
        """Return the last words of ddlrun on a failed job. ``last_source``: whose lines were printed last."""
        end = self._ends.get(failed.rank)
        if end is None:  # very many have ended after it
            return report(failed, verdict, ())
        return report(failed, verdict, end.tail, end.source == last_source)
