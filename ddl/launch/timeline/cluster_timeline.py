"""The timeline of a job on several hosts: it asks their agents for what ranks have done, and for the time."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ddl.launch.agent.clocks import HostClock
from ddl.launch.ask.config import RunConfig
from ddl.launch.timeline.job_timeline import JobTimeline
from ddl.records.follow import RankNews, parse_news

__all__ = ["ClusterTimeline"]

_Post = Callable[[int, Dict[str, Any]], None]


class ClusterTimeline:
    """``post`` sends a message to the agent of a host. Used by ddlrun's main thread."""

    def __init__(self, timeline: JobTimeline, post: _Post) -> None:
        self._timeline = timeline
        self._post = post
        self._clocks: Dict[int, HostClock] = {}
        self._held: List[Tuple[int, List[RankNews]]] = []  # of hosts whose clock is not known yet

    @staticmethod
    def of(config: RunConfig, tell: Callable[[str], None], post: _Post) -> Optional[ClusterTimeline]:
        """Return the timeline if the user wants one. ConfigError if its file cannot be made."""
        timeline = JobTimeline.if_wanted(config, tell)
        return None if timeline is None else ClusterTimeline(timeline, post)

    def begin(self, host: int, now: float) -> None:
        """The ranks of a host are started; it may be one that has returned, with another clock."""
        if self._timeline.ended:
            return
        # What an agent before has told last cannot be placed any more: its clock was not known yet.
        self._held = [(other, news) for other, news in self._held if other != host]
        self._clocks[host] = HostClock(lambda message: self._post(host, dict(message)))
        self._clocks[host].keep_measured(now)
        self._post(host, {"type": "trace", "wanted": True})

    def heard(self, host: int, name: str, message: Mapping[str, Any], received: float) -> None:
        """Take ``clock`` or ``operations`` of a host, which came at the time ``received``."""
        clock = self._clocks.get(host)
        if clock is None:
            return
        if message["type"] == "operations":
            self._held.append((host, [parse_news(news) for news in message["news"]]))
            clock.keep_measured(received)
        elif clock.heard(message, received) and clock.offset is not None:
            self._timeline.clock(name, clock.offset)
        self._write()

    def note(self, text: str) -> None:
        """Something has happened to the job."""
        self._timeline.note(text)

    def verdict(self, verdict: Optional[Mapping[str, Any]]) -> None:
        """Write the store's first verdict on the job, once it is there. Idempotent."""
        self._timeline.verdict(verdict)

    def close(self) -> None:
        """Write the rest, and the end. Idempotent."""
        for host, news in self._held:
            self._timeline.take(news, self._clocks[host].offset)
        self._held = []
        self._timeline.close()

    def _write(self) -> None:
        """Write what waits no more for a clock. The agent may send more then."""
        held, self._held = self._held, []
        for host, news in held:
            offset = self._clocks[host].offset
            if offset is None:
                self._held.append((host, news))
                continue
            self._timeline.take(news, offset)
            self._post(host, {"type": "traced"})
            if self._timeline.ended:
                self._post(host, {"type": "trace", "wanted": False})
