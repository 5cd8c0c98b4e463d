"""Starts ranks on this machine and watches over them until all have ended.

One thread runs one loop: it waits for output, for signals (also SIGCHLD) and for the next deadline, all at once. It
ends in one of three ways: all ranks exit with 0; a rank fails, and the others get a moment to fail by themselves
before they are stopped; or it is told to stop (Ctrl-C, SIGTERM, SIGHUP, or nobody reads its output).

In an elastic job a rank that fails stops nobody, and more processes may be started at any time; elastic_local.py and
elastic_agent.py say when it is over.

A job on one host (local_job.py) and the agent of one of several hosts (remote_agent.py) each have a ``HostRanks``, and
are its ``RankOwner``.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Callable, Deque, List, Mapping, Optional, Sequence, Tuple

from ddl import clock
from ddl.bootstrap.environ import Identity
from ddl.errors import ConfigError
from ddl.launch.agent import grace
from ddl.launch.agent.end_plan import EndPlan
from ddl.launch.agent.failures import ends_kept
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.job_watch import INTERVAL
from ddl.launch.agent.loop import catch_signals, drain, wait_once
from ddl.launch.agent.output import BACKLOG_LIMIT, Outlet, Stream
from ddl.launch.agent.processes import adopt_orphans, children, reads_input, signal_group
from ddl.launch.agent.rank_environ import threads_of_ranks
from ddl.launch.agent.rank_owner import RankOwner
from ddl.launch.agent.rank_start import RankStarter, Worker
from ddl.launch.agent.recordings import VARIABLE, Recordings
from ddl.launch.agent.trace_pace import TracePace
from ddl.launch.ask.config import RunConfig
from ddl.records.dump import RankDump
from ddl.records.process import OutOfMemory

__all__ = ["LAST_OUTPUT", "HostRanks"]

LAST_OUTPUT = 1.0  #: seconds to read on after all ranks have ended: somebody else may hold a pipe open


class HostRanks:
    """The ranks of one host, from their start to their end. Used once, by the main thread (signals and parent death
    hang on it). ``sinks`` are where their output and their errors go, unless to files.

    ``scratch``: a directory to be removed if this process is killed. ``outlived``: the ranks go on if it is killed.
    """

    def __init__(
        self,
        config: RunConfig,
        sinks: Tuple[Outlet, Outlet],
        owner: RankOwner,
        *,
        scratch: Optional[Path] = None,
        outlived: bool = False,
    ) -> None:
        self._config = config
        self._owner = owner
        self._scratch = scratch
        self._outlived = outlived
        self.workers: List[Worker] = []  #: those that run or have just ended
        self._forgotten: Deque[Worker] = deque(maxlen=ends_kept(config.num_proc))  # the last ones
        self._sinks = sinks
        self._reading: List[Stream] = []
        self._looks = 0
        self._orphans_seen = 0.0  # when they were last looked for
        self.end_plan = EndPlan(config.grace)
        self._dump_due = False  # before the ranks are stopped, or when all have ended
        self._next_sample: Optional[float] = None  # when the ranks are looked at; None: nobody wants to know
        self._rails = False
        self._trace: Optional[TracePace] = None  # when their operations are read; None: nobody wants to know

    def run_ranks(self, begin: Callable[[], Sequence[Identity]], meeting_point: Tuple[str, int]) -> None:
        """Start the ranks that ``begin`` returns, return when they and all that they left behind have ended.

        ``meeting_point``: an address of rank 0's host and a port that is kept there, for libraries with a rendezvous
        of their own.
        """
        self.guard = Guard(self._scratch, lasting=self._outlived)
        self._out_of_memory = OutOfMemory()
        self._recordings = Recordings(self._out_of_memory)
        self._starter = RankStarter(self._config, self._sinks, self.guard, meeting_point, outlived=self._outlived)
        adopt_orphans()
        self._woken, restore = catch_signals()
        try:
            self._start(begin())
            self._owner.started()
            while not self._owner.over():
                times = (self.end_plan.next, self._owner.deadline(), self._next_sample, self._next_trace)
                self._turn(min((time for time in times if time is not None), default=None))
            self._dump_if_due()
            self._trace_now(last=True)
            self._owner.all_ended()
            self._end_leftovers()
            self._last_output()
        finally:
            self._send(signal.SIGKILL)
            for worker in self.workers:
                worker.process.wait()
                for stream in worker.streams:
                    stream.close()
            self._recordings.close()
            self.guard.dismiss()
            restore()

    @property
    def idle(self) -> bool:
        """Whether no rank runs."""
        return all(worker.exit is not None for worker in self.workers)

    def sample_ranks(self, rails: bool) -> None:
        """Look at the ranks each second from now on; ``rails``: also at their connections, to tell rails apart."""
        self._rails |= rails
        self._next_sample = clock.now() + INTERVAL

    def trace_ranks(self, wanted: bool = True) -> None:
        """Read all operations of the ranks from now on, or no more."""
        self._trace = TracePace(clock.now()) if wanted else None
        if not wanted:
            self._recordings.no_news()

    def _start(self, ranks: Sequence[Identity]) -> None:
        config = self._config
        if config.output_dir is not None:
            try:
                os.makedirs(config.output_dir, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--output-dir {config.output_dir}: it cannot be made: {error.strerror}") from error
        if ranks:
            threads = threads_of_ranks(config, ranks[0].local_size, os.environ)
            if threads:
                self._owner.say(f"{' '.join(f'{name}={count}' for name, count in threads.items())} in every rank")
        for identity in ranks:
            self.spawn(identity, {})

    def spawn(self, identity: Identity, extra: Mapping[str, str]) -> Worker:
        """Start a process, with ``extra`` in its environment. ResourceError if that is impossible."""
        worker = self._starter.start(identity, {VARIABLE: self._recordings.name, **extra})
        self._reading += worker.streams
        self.workers.append(worker)
        self._owner.say(f"rank {worker.rank} is pid {worker.process.pid}")
        return worker

    def _turn(self, until: Optional[float]) -> None:
        """Wait for something to do, at most ``until``, and do it."""
        handlers = {
            self._woken.fileno(): (select.POLLIN, lambda: None),
            self._recordings.fileno(): (select.POLLIN, self._recordings.hear),
            **self._owner.others(),
        }
        for stream in self._reading:
            if stream.sink is None or stream.sink.backlog < BACKLOG_LIMIT:
                handlers[stream.fileno()] = (select.POLLIN, partial(self._pump, stream))
        for sink in self._sinks:
            if sink.waiting:
                handlers[sink.fd] = (select.POLLOUT, partial(self._write, sink))
        dues = [due for due in (until, *(stream.due for stream in self._reading)) if due is not None]
        wait_once(handlers, min(dues, default=None))
        self._show_questions()
        numbers = drain(self._woken)
        for number in numbers:
            if number == signal.SIGQUIT:
                self._owner.dump_wanted()
            elif number in grace.FORWARDED:
                self.forward(number)
            elif number != signal.SIGCHLD:
                self._owner.stop(number)
        if signal.SIGCHLD in numbers:
            self._look()
        if self._next_sample is not None and self._next_sample <= clock.now():
            self._next_sample = max(self._next_sample + INTERVAL, clock.now())
            self._owner.sampled(self._recordings.samples(self._rails))
        if self._trace is not None and self._trace.next <= clock.now():
            self._trace_now()
        if self._config.elastic is not None:
            self._forget_ended()
        while self.end_plan.is_due:
            self._look()  # a rank that ended by now ended by itself
            self._dump_if_due()
            self._send(self.end_plan.take())
        self._owner.turned()

    def _show_questions(self) -> None:
        """Pass on what ranks have printed that now wait for an answer."""
        now = clock.now()
        for worker in self.workers:
            for stream in worker.streams:
                if stream.due is not None and stream.due <= now:
                    if reads_input(worker.process.pid):
                        stream.pass_part()
                    else:
                        stream.look_later()

    def _forget_ended(self) -> None:
        """Forget ranks of which nothing more can come or be asked: an elastic job may lose any number."""
        for worker in [worker for worker in self.workers if worker.exit is not None]:
            printing = any(stream in self._reading for stream in worker.streams)
            if not printing and not self._recordings.has(worker.rank):
                worker.process.wait()
                self.workers.remove(worker)
                self._forgotten.append(worker)

    def _pump(self, stream: Stream) -> None:
        if not stream.pump():
            self._reading.remove(stream)
            stream.close()
            if self._outlived:
                self._forget_output(stream)

    def _forget_output(self, stream: Stream) -> None:
        """Let the guard keep no pipe of a rank that has closed the last one."""
        for worker in self.workers:
            if stream in worker.streams and not any(other in self._reading for other in worker.streams):
                self.guard.forget(worker.process.pid)

    def read_out(self, worker: Worker) -> None:
        """Pass on what a rank that has ended printed last."""
        for stream in worker.streams:
            while stream in self._reading and select.select([stream], [], [], 0)[0]:
                self._pump(stream)

    def _trace_now(self, last: bool = False) -> None:
        """Tell what the ranks have done, unless the last news have not been taken yet."""
        if self._trace is None:
            return
        begin, used = clock.now(), time.thread_time()
        if last or self._owner.may_trace():
            self._owner.traced(self._recordings.news(last))
            if self._trace is not None:  # nobody wants to know any more
                self._trace.looked(begin, time.thread_time() - used, self._recordings.fill)
        else:
            self._trace.postpone(begin)

    def _dump_if_due(self) -> None:
        if self._dump_due:
            self.dump()

    def dump(self, window: float = 0.0) -> None:
        """Tell the owner what the ranks do now. ``window``: as ``Recordings.take`` has it."""
        self._dump_due = False
        self._owner.dumped(self.take_dumps(window))

    def dump_at_end(self) -> None:
        """Tell the owner before the ranks are stopped, or when all have ended."""
        self._dump_due = True

    def take_dumps(self, window: float = 0.0) -> List[RankDump]:
        """Return what the ranks do now."""
        return self._recordings.take((worker.exit for worker in self.workers), window)

    @property
    def _next_trace(self) -> Optional[float]:
        return None if self._trace is None else self._trace.next

    def _write(self, sink: Outlet) -> None:
        if not sink.write_some():
            self._owner.stop(signal.SIGPIPE)  # nobody reads our output any more

    def _look(self) -> None:
        """Find out which ranks have ended."""
        self._looks += 1
        now = clock.now()
        stopped, memory = self.end_plan.begun, self._out_of_memory
        ended = [worker for worker in self.workers if worker.look(self._looks, stopped, memory)]
        for worker in ended:
            self._owner.say(f"{worker.exit}")
            self._owner.ended(worker)
            failed = worker.exit is not None and worker.exit.failed
            if self._config.elastic is None:
                self._dump_due |= failed
                if failed:
                    self.end_plan.fail()
            elif not failed:
                self._recordings.let_go(worker.rank)
        if not ended and now > self._orphans_seen + 1.0:  # looking for them is not free
            self._orphans_seen = now
            self._orphans()

    def forward(self, number: int) -> None:
        """Pass a signal on that means something to the program alone: to ranks, and not to what they have started."""
        for worker in self.workers:
            if worker.exit is None:
                os.kill(worker.process.pid, number)  # not waited for: the pid is still its own

    def _send(self, number: int) -> None:
        """Send a signal to all ranks and to what they started. A pid stays a rank's until ``run`` waits for it."""
        self.end_plan.begun = True
        for worker in self.workers:
            self._signal(worker, number)

    def signal_rank(self, rank: int, number: int) -> None:
        """Send a signal to a rank and to what it has started, if it is known. A zombie keeps its pid until then."""
        for worker in self.workers:
            if worker.rank == rank:
                self._signal(worker, number)

    @staticmethod
    def _signal(worker: Worker, number: int) -> None:
        signal_group(worker.process.pid, number)
        if number != signal.SIGKILL:
            signal_group(worker.process.pid, signal.SIGCONT)  # a stopped process would not hear it

    @property
    def known_workers(self) -> Sequence[Worker]:
        """Those that run or have just ended, and the last ones that were forgotten."""
        return (*self._forgotten, *self.workers)

    def _orphans(self) -> List[int]:
        """Return the living processes that ranks left behind; the dead ones are waited for."""
        known = {worker.process.pid for worker in self.workers} | {self.guard.pid}
        alive = []
        for pid, state in children().items():
            if pid not in known:
                if state == "Z":
                    os.waitpid(pid, 0)
                else:
                    alive.append(pid)
        return alive

    def _end_leftovers(self) -> None:
        """All ranks have ended: end what they left behind, politely if the job went well."""
        begin = clock.now()
        politely = not self.end_plan.begun
        orphans = self._orphans()
        while orphans:
            now = clock.now()
            if now > begin + 4 * grace.KILL_GRACE:
                self._owner.say(f"processes {orphans} cannot be killed")
                return
            number = signal.SIGTERM if politely and now < begin + grace.KILL_GRACE else signal.SIGKILL
            for pid in orphans:
                os.kill(pid, number)  # our own child, not waited for: the pid cannot be anybody else's
            self._send(number)
            self._turn(now + 0.02)
            orphans = self._orphans()

    def _last_output(self) -> None:
        """Forward what is still in the pipes, and wait for its reader; not for long if told to stop."""
        end = clock.now() + LAST_OUTPUT
        while self._reading and clock.now() < end:
            self._turn(end)
            if not self.end_plan.stop_signal and any(sink.backlog >= BACKLOG_LIMIT for sink in self._sinks):
                end = clock.now() + LAST_OUTPUT
        for worker in self.workers:
            for stream in worker.streams:
                stream.close()
        self._reading = []
        while any(sink.backlog for sink in self._sinks) and not (self.end_plan.stop_signal and clock.now() >= end):
            self._turn(end if self.end_plan.stop_signal else None)
