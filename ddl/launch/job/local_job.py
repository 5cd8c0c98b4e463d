"""A job whose ranks all run on this machine: its store, what shows it, and how it ends.

In an elastic job ranks come and go one by one: elastic_local.py.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from pathlib import Path
from typing import Any, Callable, ClassVar, List, Mapping, Optional, Protocol, Sequence

from ddl.bootstrap.environ import Identity
from ddl.launch.agent.dumps import KeptDumps, keep_dumps
from ddl.launch.agent.failures import Exit, first_failure, report
from ddl.launch.agent.host_ranks import HostRanks
from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.rank_environ import keep_port
from ddl.launch.agent.rank_start import Worker
from ddl.launch.ask.config import RunConfig
from ddl.launch.job.job_display import JobDisplay
from ddl.launch.job.job_output import JobOutput
from ddl.launch.timeline.job_timeline import JobTimeline
from ddl.net.encryption import prepare_encryption
from ddl.records.dump import JobEnd, RankDump
from ddl.records.follow import RankNews
from ddl.records.sample import RankSample
from ddl.store.server import StoreServer

__all__ = ["FixedLocalCourse", "LocalCourse", "LocalJob"]


class LocalCourse(Protocol):
    """How the ranks of a local job come and go. ``outlived``: they go on if ddlrun is killed."""

    outlived: ClassVar[bool]

    def make_store(self, secret: bytes) -> StoreServer:
        """Return the job's store, which does not serve yet."""

    def first_ranks(self, store: str, secret: bytes) -> List[Identity]:
        """Return the ranks that the job begins with. ``store``: its address."""

    def started(self) -> None:
        """They have been started."""

    def ended(self, worker: Worker) -> None:
        """A rank has ended, and the store has been told."""

    def over(self) -> bool:
        """Return whether no other rank will be started, now that none runs."""

    def deadline(self) -> Optional[float]:
        """Return when ``turned`` is to be called at the latest."""

    def handlers(self) -> Handlers:
        """Return what else to wait for."""

    def turned(self) -> None:
        """The loop has done what there was to do."""

    def conclude(self) -> int:
        """Tell the user how the job has ended; return ddlrun's exit status."""

    def close(self) -> None:
        """The job is over."""


class LocalJob:
    """One job on this machine, from its start to its end, and the ``RankOwner`` of its ranks.

    Used once, by the main thread. ``course``: makes what says how ranks come and go.
    ``conclude``: tells how the ended job has ended, and returns the exit status; None: the user is told on stderr.
    ``scratch``: a directory to be removed if this process is killed.
    """

    def __init__(
        self,
        config: RunConfig,
        course: Callable[[LocalJob], LocalCourse],
        conclude: Optional[Callable[[LocalJob], int]] = None,
        scratch: Optional[Path] = None,
    ) -> None:
        settings = config.settings
        prepare_encryption(settings.encrypt, settings.openssl)  # what is missing is said before anything starts
        self.config = config
        self._conclude = conclude
        self.output = JobOutput(config)
        self._dumps: Sequence[RankDump] = ()
        self._timeline = JobTimeline.if_wanted(config, self.output.tell)
        self._course = course(self)
        self.ranks = HostRanks(config, self.output.sinks, self, scratch=scratch, outlived=self._course.outlived)

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        with contextlib.closing(self._course):
            with contextlib.ExitStack() as stack:
                port = stack.enter_context(keep_port())
                if self._timeline is not None:
                    stack.callback(self._timeline.close)
                    self.ranks.trace_ranks()
                self.ranks.run_ranks(lambda: self._begin(stack), ("127.0.0.1", port))
            status = self._course.conclude() if self._conclude is None else self._conclude(self)
            return self._display.job_ended(status, self.server.first_failure)

    def _begin(self, stack: contextlib.ExitStack) -> List[Identity]:
        self._open_display(stack)
        secret = secrets.token_bytes(32)
        self.server = stack.enter_context(self._course.make_store(secret))
        self.say(f"the store is at {self.server.address}")
        return self._course.first_ranks(self.server.address, secret)

    def _open_display(self, stack: contextlib.ExitStack) -> None:
        """Let others see what the job does; after the guard has been made, which would keep their socket."""
        display = JobDisplay(self.config, self.output.sinks, self.dump_wanted, self._begin_samples)
        self._display = stack.enter_context(contextlib.closing(display))
        display.open()
        if display.requests.problem:
            self.say(display.requests.problem)

    def _begin_samples(self) -> None:
        self.ranks.sample_ranks(self._display.shows_rails)

    # --- RankOwner ---

    def started(self) -> None:
        """Let the store serve: not before, as a fork copies only one thread, but the locks of all."""
        self._course.started()
        self.server.start()
        self._display.started()

    def ended(self, worker: Worker) -> None:
        """Tell the ranks that wait for this one in ``init`` how it ended."""
        self.server.ended(worker.rank, str(worker.exit))
        self._display.forget(worker.rank, str(worker.exit))
        if self._timeline is not None and worker.exit is not None and worker.exit.failed:
            self._timeline.note(str(worker.exit))
        self._course.ended(worker)

    def dumped(self, dumps: Sequence[RankDump]) -> None:
        """Keep them until it is known how the job has ended."""
        self._dumps = dumps

    def all_ended(self) -> None:
        """Show no status any more."""
        self._display.hide()

    def sampled(self, samples: Sequence[RankSample]) -> None:
        """Show how the job is."""
        running = sum(worker.exit is None for worker in self.ranks.workers)
        self._display.take(samples, running, self.server.late, self.server.first_failure)

    def traced(self, news: Sequence[RankNews]) -> None:
        """Write what the ranks have done."""
        if self._timeline is not None:
            self._timeline.take(news, None)
            self._timeline.verdict(self.server.first_failure)
            if self._timeline.ended:
                self.ranks.trace_ranks(False)

    def dump_wanted(self) -> None:
        """Write what the ranks do now, and tell where."""
        self.ranks.dump()
        kept = self._keep_dumps(None)
        self.output.tell(*kept.lines)
        self._display.requests.answer(kept.message)

    def stop(self, number: int) -> None:
        """Stop the ranks."""
        self.ranks.end_plan.stop(number)

    def say(self, text: str) -> None:
        """Tell the user, if he wants to know."""
        self.output.say(text)

    def turned(self) -> None:
        """Let ranks come and go."""
        self._course.turned()

    def may_trace(self) -> bool:
        """Return True: what was told has been written."""
        return True

    def over(self) -> bool:
        """Return whether all ranks have ended, and no other one will be started."""
        return self.ranks.idle and self._course.over()

    def deadline(self) -> Optional[float]:
        """Return when the loop is to turn at the latest."""
        return self._course.deadline()

    def others(self) -> Handlers:
        """Wait for those who ask, too."""
        return {**self._display.requests.handlers(), **self._course.handlers()}

    # --- for what concludes the job, and for the course ---

    @property
    def failed(self) -> Optional[Exit]:
        """The exit that the job's failure began with, None without one. When all ranks have ended."""
        exits = [worker.exit for worker in self.ranks.workers if worker.exit is not None]
        return first_failure(exits, self.server.first_failure)

    @property
    def stopped_by(self) -> Optional[signal.Signals]:
        """The signal by which somebody has stopped the job."""
        number = self.ranks.end_plan.stop_signal
        return signal.Signals(number) if number else None

    def last_lines(self, rank: int) -> List[str]:
        """Return the last lines that a rank has written to its stderr."""
        return list(self.ranks.workers[rank].streams[1].tail)

    def dump_after(self, failed: Exit) -> None:
        """Write what the ranks do now, after one of them has failed and the others go on, and tell where."""
        self.ranks.dump()
        if self._dumps:
            self.output.tell(*self._keep_dumps(failed).lines)

    def _keep_dumps(self, failed: Optional[Exit]) -> KeptDumps:
        """Write the dumps, if there are any."""
        dumps, self._dumps = self._dumps, ()
        workers = [worker for worker in self.ranks.known_workers if worker.exit is not None and not worker.exit.stopped]
        end = JobEnd(
            size=self.config.num_proc,
            verdict=self.server.first_failure,
            first=None if failed is None else failed.rank,
            exits={worker.rank: str(worker.exit) for worker in workers},
            last_lines={worker.rank: worker.streams[1].tail for worker in workers},
        )
        return keep_dumps(self.config.dump_dir, dumps, end)

    def report(self, failed: Exit, verdict: Optional[Mapping[str, Any]]) -> int:
        """Say that the job has failed; return ddlrun's exit status."""
        stream = next((worker.streams[1] for worker in self.ranks.known_workers if worker.rank == failed.rank), None)
        lines = [] if stream is None else stream.tail  # none: very many have ended after it
        shown = stream is not None and self.output.last_on_stderr is stream
        print(report(failed, verdict, lines, shown), file=sys.stderr)
        if self._dumps:
            kept = self._keep_dumps(failed)
            kept.print()
            self._display.tell(kept.lines)
        return failed.status


class FixedLocalCourse:
    """All ranks begin together, and the first that fails ends the job."""

    outlived: ClassVar[bool] = False

    def __init__(self, job: LocalJob) -> None:
        self._job = job

    def make_store(self, secret: bytes) -> StoreServer:
        config = self._job.config
        return StoreServer(secret, config.num_proc, start=False, encrypt=config.settings.encrypt)

    def first_ranks(self, store: str, secret: bytes) -> List[Identity]:
        size = self._job.config.num_proc
        return [Identity(rank, size, rank, size, 0, 1, store, secret) for rank in range(size)]

    def started(self) -> None:
        pass

    def ended(self, worker: Worker) -> None:
        pass

    def over(self) -> bool:
        return True

    def deadline(self) -> Optional[float]:
        return None

    def handlers(self) -> Handlers:
        return {}

    def turned(self) -> None:
        pass

    def conclude(self) -> int:
        job = self._job
        if job.stopped_by is not None:
            return job.output.report_stop(job.stopped_by)
        failed = job.failed
        return 0 if failed is None else job.report(failed, job.server.first_failure)

    def close(self) -> None:
        pass
