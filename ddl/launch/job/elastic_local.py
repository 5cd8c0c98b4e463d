"""An elastic job whose ranks all run on this machine.

A rank that fails does not end it. If ddlrun is killed, the ranks go on: they have no parent-death signal, and the guard
takes over their output.
"""

from __future__ import annotations

import signal
import sys
from typing import ClassVar, List, Optional

from ddl.bootstrap.environ import Identity
from ddl.errors import InternalError, ResourceError
from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.processes import signal_group
from ddl.launch.agent.rank_environ import newcomer
from ddl.launch.agent.rank_start import Worker
from ddl.launch.job.elastic_course import ElasticCourse
from ddl.launch.job.elastic_events import ProcessEnded, StartProcess
from ddl.launch.job.elastic_store import elastic_store, leave
from ddl.launch.job.local_job import LocalJob
from ddl.store.server import StoreServer

__all__ = ["ElasticLocalCourse"]


class ElasticLocalCourse:
    """The ``LocalCourse`` of an elastic job: it feeds the ``ElasticCourse``, and is its ``ElasticRanks``."""

    outlived: ClassVar[bool] = True

    def __init__(self, job: LocalJob) -> None:
        options = job.config.elastic
        assert options is not None
        self._job = job
        self._options = options
        self._course = ElasticCourse(options, job.config.num_proc, self)
        self._first: List[StartProcess] = []
        self._started = False

    def make_store(self, secret: bytes) -> StoreServer:
        config = self._job.config
        return elastic_store(secret, config.num_proc, self._options, self._course.post, settings=config.settings)

    def first_ranks(self, store: str, secret: bytes) -> List[Identity]:
        self._store, self._secret = store, secret
        self._course.begin(lambda: self._job.ranks.guard)
        return [self._identity(order, self._job.config.num_proc) for order in self._first]

    def _identity(self, order: StartProcess, size: int) -> Identity:
        return Identity(order.incarnation, size, order.slot, order.slots, 0, 1, self._store, self._secret)

    def started(self) -> None:
        self._started = True

    # --- the loop ---

    def over(self) -> bool:
        return self._course.over or self._job.ranks.end_plan.begun

    def deadline(self) -> Optional[float]:
        return self._course.deadline() if self._job.ranks.end_plan.goes_on else None

    def handlers(self) -> Handlers:
        return self._course.handlers() if self._job.ranks.end_plan.goes_on else {}

    def turned(self) -> None:
        if self._job.ranks.end_plan.goes_on:
            self._course.look()

    def ended(self, worker: Worker) -> None:
        entry = worker.exit
        if entry is None or not self._job.ranks.end_plan.goes_on:
            return
        if entry.failed:
            signal_group(entry.pid, signal.SIGKILL)  # what it has started: another rank may need its place
        self._course.process_ended(entry)
        if entry.failed:
            self._job.dump_after(entry)

    # --- ElasticRanks ---

    def start_process(self, order: StartProcess) -> None:
        """Start a process, or keep it for the beginning."""
        if not self._started:
            self._first.append(order)
            return
        identity = self._identity(order, order.incarnation + 1)
        try:
            worker = self._job.ranks.spawn(identity, newcomer(identity))
        except ResourceError as error:
            self._course.post(ProcessEnded(order.incarnation, False, str(error)))
            return self.tell(str(error))
        self.tell(f"rank {order.incarnation} (pid {worker.process.pid}) was started")

    def let_go(self, incarnation: int) -> None:
        """Let a process leave after its step."""
        leave(self._job.server, incarnation)

    def signal_process(self, incarnation: int, number: int) -> None:
        """Send a signal to a process and to what it has started."""
        self._job.ranks.signal_rank(incarnation, number)

    def renew_host(self, name: str) -> None:
        """Never ordered: ``ElasticOptions.returning`` names no host here, as no other machine can replace this one."""
        raise InternalError(f"host {name} is the only one of this job, and ddlrun was about to end it for a new one")

    def give_up(self) -> None:
        """End all processes."""
        self._job.ranks.end_plan.give_up()

    def tell(self, text: str) -> None:
        """Print a line of ddlrun's own on stderr, behind what the ranks have printed there."""
        self._job.output.tell(text)

    # --- the end ---

    def conclude(self) -> int:
        summary = self._course.summary()
        if summary:
            print(f"ddlrun: {summary}", file=sys.stderr)
        job = self._job
        if job.stopped_by is not None:
            return job.output.report_stop(job.stopped_by)
        if self._course.problem:
            print(f"ddlrun: {self._course.problem}", file=sys.stderr)
        failed = self._course.failure()
        if failed is None:
            return 1 if self._course.problem else 0
        return job.report(failed, None)

    def close(self) -> None:
        self._course.close()
