"""An elastic job whose ranks all run on this machine.

A rank that fails does not end it. If ddlrun is killed, the ranks go on: they have no parent-death signal, and the guard
takes over their output.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import time
from typing import List, Optional

from ddl.bootstrap.environ import Identity
from ddl.errors import InternalError, ResourceError
from ddl.launch.agent import grace
from ddl.launch.agent.host_agent import Worker
from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.output import Stream
from ddl.launch.agent.processes import signal_group
from ddl.launch.agent.rank_environ import newcomer
from ddl.launch.ask.config import RunConfig
from ddl.launch.job.elastic_course import ElasticCourse
from ddl.launch.job.elastic_events import ProcessEnded, StartProcess
from ddl.launch.job.elastic_store import elastic_store, leave
from ddl.launch.job.local_job import LocalJob

__all__ = ["ElasticLocalJob"]


class ElasticLocalJob(LocalJob):
    """One elastic job on this machine, from its start to its end. Used once, by the main thread."""

    outlived = True

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        assert config.elastic is not None
        self._options = config.elastic
        self._course = ElasticCourse(config.elastic, config.num_proc, self)
        self._first: List[StartProcess] = []
        self._started = False

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        try:
            return super().run()
        finally:
            self._course.close()

    def _begin(self, stack: contextlib.ExitStack) -> List[Identity]:
        self._open_display(stack)
        self._secret = secrets.token_bytes(32)
        size = self._config.num_proc
        self._server = stack.enter_context(elastic_store(self._secret, size, self._options, self._course.post))
        self.say(f"the store is at {self._server.address}")
        self._course.begin(lambda: self._guard)
        return [self._identity(order, size) for order in self._first]

    def _identity(self, order: StartProcess, size: int) -> Identity:
        return Identity(order.incarnation, size, order.slot, order.slots, 0, 1, self._server.address, self._secret)

    def started(self) -> None:
        self._started = True
        super().started()

    # --- the loop ---

    def ends_job(self, worker: Worker) -> bool:
        return False

    def over(self) -> bool:
        return super().over() and (self._course.over or self._stopping)

    def deadline(self) -> Optional[float]:
        return self._course.deadline() if self._goes_on else None

    def others(self) -> Handlers:
        return {**super().others(), **(self._course.handlers() if self._goes_on else {})}

    @property
    def _goes_on(self) -> bool:
        return not self._stop_signal and not self._stopping

    def _turn(self, until: Optional[float]) -> None:
        super()._turn(until)
        if self._goes_on:
            self._course.look()

    def _pump(self, stream: Stream) -> None:
        super()._pump(stream)
        for worker in self._workers:
            if stream in worker.streams and not any(other in self._reading for other in worker.streams):
                self._guard.forget(worker.process.pid)

    def ended(self, worker: Worker) -> None:
        super().ended(worker)
        entry = worker.exit
        if entry is None or not self._goes_on:
            return
        if entry.failed:
            signal_group(entry.pid, signal.SIGKILL)  # what it has started: another rank may need its place
        self._course.process_ended(entry)
        if entry.failed:
            self._dump()
            if self._dumps:
                self.tell(*self._keep_dumps(entry).lines)

    # --- ElasticRanks ---

    def start_process(self, order: StartProcess) -> None:
        """Start a process, or keep it for the beginning."""
        if not self._started:
            self._first.append(order)
            return
        identity = self._identity(order, order.incarnation + 1)
        try:
            worker = self._spawn(identity, newcomer(identity))
        except ResourceError as error:
            self._course.post(ProcessEnded(order.incarnation, False, str(error)))
            return self.tell(str(error))
        self.tell(f"rank {order.incarnation} (pid {worker.process.pid}) was started")

    def let_go(self, incarnation: int) -> None:
        """Let a process leave after its step."""
        leave(self._server, incarnation)

    def signal_process(self, incarnation: int, number: int) -> None:
        """Send a signal to a process and to what it has started."""
        self.signal_rank(incarnation, number)

    def renew_host(self, name: str) -> None:
        """Never ordered: ``ElasticOptions.returning`` names no host here, as no other machine can replace this one."""
        raise InternalError(f"host {name} is the only one of this job, and ddlrun was about to end it for a new one")

    def give_up(self) -> None:
        """End all processes."""
        self._signals_due = grace.when_given_up(time.monotonic(), self._config.grace)

    # --- the end ---

    def _tell_user(self) -> int:
        summary = self._course.summary()
        if summary:
            print(f"ddlrun: {summary}", file=sys.stderr)
        if self._stop_signal:
            return super()._tell_user()
        if self._course.problem:
            print(f"ddlrun: {self._course.problem}", file=sys.stderr)
        failed = self._course.failure()
        if failed is None:
            return 1 if self._course.problem else 0
        return self._report(failed, None)
