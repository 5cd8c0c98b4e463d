"""A job whose ranks all run on this machine: its store, its agent, and how it ends."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from pathlib import Path
from typing import Any, Callable, List, Mapping, Optional, Sequence

from ddl.bootstrap.environ import Identity
from ddl.launch.agent.dumps import KeptDumps, keep_dumps
from ddl.launch.agent.failures import Exit, first_failure, report
from ddl.launch.agent.host_agent import HostAgent, Worker
from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.output import Sink
from ddl.launch.agent.rank_environ import keep_port
from ddl.launch.ask.config import RunConfig
from ddl.launch.job.job_display import JobDisplay
from ddl.launch.timeline.job_timeline import JobTimeline
from ddl.records.dump import JobEnd, RankDump
from ddl.records.follow import RankNews
from ddl.records.sample import RankSample
from ddl.store.server import StoreServer

__all__ = ["LocalJob"]


class LocalJob(HostAgent):
    """One job on this machine, from its start to its end. Used once, by the main thread.

    ``conclude``: tells how the ended job has ended, and returns the exit status; None: the user is told on stderr.
    ``scratch``: a directory to be removed if this process is killed.
    """

    def __init__(
        self,
        config: RunConfig,
        conclude: Optional[Callable[[LocalJob], int]] = None,
        scratch: Optional[Path] = None,
    ) -> None:
        self.scratch = scratch
        self._conclude = conclude
        output = Sink(1)
        self._output, self._errors = output, Sink(2, output)
        self._dumps: Sequence[RankDump] = ()
        self._timeline = JobTimeline.if_wanted(config, self.tell)
        super().__init__(config, (output, self._errors))

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        with contextlib.ExitStack() as stack:
            port = stack.enter_context(keep_port())
            if self._timeline is not None:
                stack.callback(self._timeline.close)
                self.trace_ranks()
            self.run_ranks(lambda: self._begin(stack), ("127.0.0.1", port))
        status = self._tell_user() if self._conclude is None else self._conclude(self)
        return self._display.job_ended(status, self._server.first_failure)

    def _begin(self, stack: contextlib.ExitStack) -> List[Identity]:
        self._open_display(stack)
        secret, size = secrets.token_bytes(32), self._config.num_proc
        self._server = stack.enter_context(StoreServer(secret, size, start=False))
        self.say(f"the store is at {self._server.address}")
        return [Identity(rank, size, rank, size, 0, 1, self._server.address, secret) for rank in range(size)]

    def _open_display(self, stack: contextlib.ExitStack) -> None:
        """Let others see what the job does; after the guard has been made, which would keep their socket."""
        display = JobDisplay(self._config, (self._output, self._errors), self.dump_wanted, self._begin_samples)
        self._display = stack.enter_context(contextlib.closing(display))
        display.open()
        if display.requests.problem:
            self.say(display.requests.problem)

    def _begin_samples(self) -> None:
        self.sample_ranks(self._display.shows_rails)

    def started(self) -> None:
        """Let the store serve: not before, as a fork copies only one thread, but the locks of all."""
        self._server.start()
        self._display.started()

    def ended(self, worker: Worker) -> None:
        """Tell the ranks that wait for this one in ``init`` how it ended."""
        self._server.ended(worker.rank, str(worker.exit))
        self._display.forget(worker.rank, str(worker.exit))
        if self._timeline is not None and worker.exit is not None and worker.exit.failed:
            self._timeline.note(str(worker.exit))

    def sampled(self, samples: Sequence[RankSample]) -> None:
        """Show how the job is."""
        running = sum(worker.exit is None for worker in self._workers)
        self._display.take(samples, running, self._server.late, self._server.first_failure)

    def traced(self, news: Sequence[RankNews]) -> None:
        """Write what the ranks have done."""
        if self._timeline is not None:
            self._timeline.take(news, None)
            self._timeline.verdict(self._server.first_failure)
            if self._timeline.ended:
                self.trace_ranks(False)

    def all_ended(self) -> None:
        """Show no status any more."""
        self._display.hide()

    def dumped(self, dumps: Sequence[RankDump]) -> None:
        """Keep them until it is known how the job has ended."""
        self._dumps = dumps

    def dump_wanted(self) -> None:
        """Write what the ranks do now, and tell where."""
        self._dump()
        kept = self._keep_dumps(None)
        self.tell(*kept.lines)
        self._display.requests.answer(kept.message)

    def others(self) -> Handlers:
        """Wait for those who ask, too."""
        return self._display.requests.handlers()

    def tell(self, *lines: str) -> None:
        """Print lines of ddlrun's own on stderr, behind what the ranks have printed there."""
        self._errors.put("".join(f"ddlrun: {line}\n" for line in lines).encode(), self)

    def say(self, text: str) -> None:
        """Tell the user, if he wants to know."""
        if self._config.verbose:
            print(f"ddlrun: {text}", file=sys.stderr, flush=True)

    @property
    def failed(self) -> Optional[Exit]:
        """The exit that the job's failure began with, None without one. When all ranks have ended."""
        exits = [worker.exit for worker in self._workers if worker.exit is not None]
        return first_failure(exits, self._server.first_failure)

    def _keep_dumps(self, failed: Optional[Exit]) -> KeptDumps:
        """Write the dumps, if there are any."""
        dumps, self._dumps = self._dumps, ()
        workers = [worker for worker in self._known_workers if worker.exit is not None and not worker.exit.stopped]
        end = JobEnd(
            size=self._config.num_proc,
            verdict=self._server.first_failure,
            first=None if failed is None else failed.rank,
            exits={worker.rank: str(worker.exit) for worker in workers},
            last_lines={worker.rank: worker.streams[1].tail for worker in workers},
        )
        return keep_dumps(self._config.dump_dir, dumps, end)

    @property
    def stopped_by(self) -> Optional[signal.Signals]:
        """The signal by which somebody has stopped the job."""
        return signal.Signals(self._stop_signal) if self._stop_signal else None

    def last_lines(self, rank: int) -> List[str]:
        """Return the last lines that a rank has written to its stderr."""
        return list(self._workers[rank].streams[1].tail)

    def _tell_user(self) -> int:
        if self._stop_signal:
            print(f"ddlrun: stopped by {signal.Signals(self._stop_signal).name}", file=sys.stderr)
            return 128 + self._stop_signal
        failed = self.failed
        if failed is None:
            return 0
        return self._report(failed, self._server.first_failure)

    def _report(self, failed: Exit, verdict: Optional[Mapping[str, Any]]) -> int:
        """Say that the job has failed; return ddlrun's exit status."""
        stream = next((worker.streams[1] for worker in self._known_workers if worker.rank == failed.rank), None)
        lines = [] if stream is None else stream.tail  # none: very many have ended after it
        print(report(failed, verdict, lines, stream is not None and self._errors.last is stream), file=sys.stderr)
        if self._dumps:
            kept = self._keep_dumps(failed)
            kept.print()
            self._display.tell(kept.lines)
        return failed.status
