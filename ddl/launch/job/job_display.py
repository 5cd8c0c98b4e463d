"""Shows a job, from samples of its ranks: the terminal's line, ``ddl top``, ``/metrics``, and the page."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from ddl import clock
from ddl.launch.agent.job_watch import INTERVAL, JobWatch
from ddl.launch.agent.output import Sink
from ddl.launch.ask.config import RunConfig
from ddl.launch.show.requests import JobRequests
from ddl.launch.show.status_line import StatusLine
from ddl.records.sample import RankSample

if TYPE_CHECKING:
    from ddl.launch.dashboard.live import JobPage
    from ddl.launch.show.metrics_server import MetricsServer

__all__ = ["JobDisplay"]


class JobDisplay:
    """Takes samples as they come from hosts. ``sample`` is called when the first who wants them is there.

    ``sinks`` are where output and errors go. ``dump`` is called when somebody asks for dumps; ``requests`` tells him.
    """

    def __init__(
        self, config: RunConfig, sinks: Sequence[Sink], dump: Callable[[], None], sample: Callable[[], None]
    ) -> None:
        self._watch = JobWatch()
        self._page: Optional[JobPage] = None
        self._status = StatusLine.if_wanted(sinks[1], config)
        self._config, self._sinks = config, sinks
        self._metrics: Optional[MetricsServer] = None
        self._sample = sample
        self._sampling = False
        self._began = clock.now()
        self._next = 0.0  # when the next picture is due
        self.requests = JobRequests(dump, self._begin)

    def open(self) -> None:
        """Get ready, before any rank starts. ``ConfigError`` if what the user wants cannot be served, or written.

        Each loads what ddlrun otherwise does without.
        """
        config = self._config
        if config.dashboard is not None or config.history is not None:
            from ddl.launch.dashboard.live import JobPage

            self._page = JobPage(config, self._sinks)
        if config.metrics is not None:
            from ddl.launch.show.metrics_server import MetricsServer

            self._metrics = MetricsServer(config.metrics)
            print(f"ddlrun: metrics are at {self._metrics.url}", file=sys.stderr, flush=True)

    def started(self) -> None:
        """Ranks have been started; from now on there may be threads."""
        if self._metrics is not None:
            self._metrics.start()
        if self._page is not None:
            self._page.start()
        if self._status is not None or self._metrics is not None or self._page is not None:
            self._begin()

    @property
    def sampling(self) -> bool:
        """Whether samples are wanted, also of hosts that come later."""
        return self._sampling

    @property
    def shows_rails(self) -> bool:
        """Whether samples are to tell rails apart."""
        return self._page is not None

    def take(
        self,
        samples: Iterable[RankSample],
        running: int,
        late: Mapping[int, float],
        verdict: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Show what has come. ``running``: ranks. ``late``: as ``JobWatch.now`` takes it. ``verdict``: the store's."""
        whole: List[RankSample] = list(samples)
        if self._metrics is not None:
            self._metrics.take(whole, running, late)
        self._watch.take(dataclasses.replace(sample, communicators=()) for sample in whole)
        now = clock.now()
        if self._status is not None:
            self._status.show(self._watch.now(running, late), now - self._began)
        if now < self._next:
            return
        self._next = now + INTERVAL / 2
        if self._page is not None:
            self._page.take(now - self._began, self._watch.now(running, late), self._watch.ranks(late), verdict)
        if self.requests.watched:
            self.requests.show(self._picture(running, late, now - self._began))

    def forget(self, number: int, how: str) -> None:
        """The process with this number has ended, as ``how`` says."""
        self._watch.forget(number)
        if self._metrics is not None:
            self._metrics.forget(number)
        if self._page is not None:
            self._page.process_ended(clock.now() - self._began, number, how)

    def hide(self) -> None:
        """The last output is to come: show no line any more."""
        if self._status is not None:
            self._status.hide()

    def close(self) -> None:
        """Hear nobody any more. Idempotent."""
        self.requests.close()
        if self._metrics is not None:
            self._metrics.close()

    def tell(self, lines: Iterable[str]) -> None:
        """Show lines of ddlrun's own that go past the sinks, as those at its end do."""
        if self._page is not None:
            self._page.tell(clock.now() - self._began, lines)

    def job_ended(self, status: int, verdict: Optional[Mapping[str, Any]]) -> int:
        """Show that the job has ended, with this status of ddlrun, which is returned. ``verdict``: as of ``take``."""
        if self._page is not None:
            self._page.end(clock.now() - self._began, status, verdict)
        return status

    def _begin(self) -> None:
        if not self._sampling:
            self._sampling = True
            self._sample()

    def _picture(self, running: int, late: Mapping[int, float], elapsed: float) -> Dict[str, Any]:
        job = {"pid": os.getpid(), "command": list(self._config.command), "elapsed": elapsed}
        ranks = [dataclasses.asdict(rank) for rank in self._watch.ranks(late)]
        for rank in ranks:
            del rank["sample"]["communicators"]  # sums for ``/metrics``, which ``take`` has left out
        return {
            "job": {**job, **dataclasses.asdict(self._watch.now(running, late))},
            "ranks": ranks,
        }
