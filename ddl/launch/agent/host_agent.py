"""Starts ranks on this machine and watches over them until all have ended.

One thread runs one loop: it waits for output, for signals (also SIGCHLD) and for the next deadline, all at once. It
ends in one of three ways: all ranks exit with 0; a rank fails, and the others get a moment to fail by themselves
before they are stopped; or it is told to stop (Ctrl-C, SIGTERM, SIGHUP, or nobody reads its output).

In an elastic job a rank that fails stops nobody, and more processes may be started at any time; elastic_local_job.py
and elastic_agent.py say when it is over.

``HostAgent`` has what a job on one host (local_job.py) and the agent of one of several hosts (remote.py) share.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Callable, Deque, Iterator, List, Mapping, Optional, Sequence, Tuple

from ddl.bootstrap.environ import Identity
from ddl.errors import ConfigError, ResourceError
from ddl.launch.agent import grace
from ddl.launch.agent.failures import Exit, ends_kept
from ddl.launch.agent.guard import Guard, Outflow
from ddl.launch.agent.job_watch import INTERVAL
from ddl.launch.agent.loop import Handlers, catch_signals, drain, wait_once
from ddl.launch.agent.output import BACKLOG_LIMIT, FileStream, Outlet, Stream, prefix_of
from ddl.launch.agent.processes import adopt_orphans, children, die_with_parent, reads_input, signal_group
from ddl.launch.agent.rank_environ import meeting_point, rank_environ, threads_of_ranks
from ddl.launch.agent.recordings import VARIABLE, Recordings
from ddl.launch.agent.trace_pace import TracePace
from ddl.launch.ask.config import RunConfig
from ddl.records.dump import RankDump
from ddl.records.follow import RankNews
from ddl.records.sample import RankSample

__all__ = ["HostAgent", "Worker"]

LAST_OUTPUT = 1.0  #: seconds to read on after all ranks have ended: somebody else may hold a pipe open


class Worker:
    """One rank: its process, its output and, in the end, its exit."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], streams: Tuple[Stream, ...]) -> None:
        self.rank = rank
        self.process = process
        self.streams = streams
        self.exit: Optional[Exit] = None

    def look(self, seen: int, stopped: bool) -> bool:
        """Return whether it has ended since the last look.

        It stays a zombie until the job ends, or until an elastic job forgets it, so that its pid keeps its meaning.
        """
        if self.exit is not None:
            return False
        result = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self.exit = Exit(self.rank, self.process.pid, code, seen, stopped)
        return True


class HostAgent:
    """The ranks of one host, from their start to their end. Used once, by the main thread (signals and parent death
    hang on it). ``sinks`` are where their output and their errors go, unless to files.
    """

    scratch: Optional[Path] = None  #: a directory to be removed if this process is killed
    outlived = False  #: the ranks go on if this process is killed

    def __init__(self, config: RunConfig, sinks: Tuple[Outlet, Outlet]) -> None:
        self._config = config
        self._workers: List[Worker] = []
        self._forgotten: Deque[Worker] = deque(maxlen=ends_kept(config.num_proc))  # the last ones
        self._sinks = sinks
        self._reading: List[Stream] = []
        self._looks = 0
        self._orphans_seen = 0.0  # when they were last looked for
        self._stop_signal = 0  # why we were told to stop
        self._signals_due: List[Tuple[float, int]] = []  # (when, which signal) the ranks are sent next
        self._stopping = False  # a signal has been sent to the ranks: how they end says nothing any more
        self._dump_due = False  # before the ranks are stopped, or when all have ended
        self._next_sample: Optional[float] = None  # when the ranks are looked at; None: nobody wants to know
        self._rails = False
        self._trace: Optional[TracePace] = None  # when their operations are read; None: nobody wants to know

    def run_ranks(self, begin: Callable[[], Sequence[Identity]], meeting_point: Tuple[str, int]) -> None:
        """Start the ranks that ``begin`` returns, return when they and all that they left behind have ended.

        ``meeting_point``: an address of rank 0's host and a port that is kept there, for libraries with a rendezvous
        of their own.
        """
        self._meeting_point = meeting_point
        self._guard = Guard(self.scratch, lasting=self.outlived)
        self._recordings = Recordings()
        self._in_child = None if self.outlived else die_with_parent()
        adopt_orphans()
        self._woken, restore = catch_signals()
        try:
            self._start(begin())
            self.started()
            while not self.over():
                times = (self._next_signal, self.deadline(), self._next_sample, self._next_trace)
                self._turn(min((time for time in times if time is not None), default=None))
            self._dump_if_due()
            self._trace_now(last=True)
            self.all_ended()
            self._end_leftovers()
            self._last_output()
        finally:
            self._send(signal.SIGKILL)
            for worker in self._workers:
                worker.process.wait()
                for stream in worker.streams:
                    stream.close()
            self._recordings.close()
            self._guard.dismiss()
            restore()

    # What the two kinds of agents do differently.

    def started(self) -> None:
        """All ranks have been started; from now on there may be threads."""

    def ended(self, worker: Worker) -> None:
        """A rank has ended, and its pipes may still hold output."""

    def ends_job(self, worker: Worker) -> bool:
        """Return whether the others are to be stopped, now that this rank has failed."""
        return True

    def dumped(self, dumps: Sequence[RankDump]) -> None:
        """These are the dumps of the ranks; none if they do not use DDL."""

    def all_ended(self) -> None:
        """All ranks have ended; their last output is still to come."""

    def sampled(self, samples: Sequence[RankSample]) -> None:
        """This is what the ranks do now, each second from ``sample_ranks`` on."""

    def sample_ranks(self, rails: bool) -> None:
        """Look at the ranks each second from now on; ``rails``: also at their connections, to tell rails apart."""
        self._rails |= rails
        self._next_sample = time.monotonic() + INTERVAL

    def traced(self, news: Sequence[RankNews]) -> None:
        """This is what the ranks have done since the last time, several times a second from ``trace_ranks`` on."""

    def may_trace(self) -> bool:
        """Return whether what was told before has been taken."""
        return True

    def trace_ranks(self, wanted: bool = True) -> None:
        """Read all operations of the ranks from now on, or no more."""
        self._trace = TracePace(time.monotonic()) if wanted else None
        if not wanted:
            self._recordings.no_news()

    def dump_wanted(self) -> None:
        """Somebody has sent SIGQUIT (Ctrl-\\ in a terminal): he wants to know what the ranks do, and no more."""

    def over(self) -> bool:
        """Return whether all ranks have ended, and no other one will be started."""
        return self.idle

    @property
    def idle(self) -> bool:
        """Whether no rank runs."""
        return all(worker.exit is not None for worker in self._workers)

    def deadline(self) -> Optional[float]:
        """Return when the loop is to turn at the latest."""
        return None

    def others(self) -> Handlers:
        """Return what else to wait for: by descriptor, the events of poll(2), and what to do then."""
        return {}

    def say(self, text: str) -> None:
        """Tell the user, if he wants to know."""

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
                self.say(f"{' '.join(f'{name}={count}' for name, count in threads.items())} in every rank")
        for identity in ranks:
            self._spawn(identity, {})

    def _spawn(self, identity: Identity, extra: Mapping[str, str]) -> Worker:
        """Start a process, with ``extra`` in its environment. ResourceError if that is impossible."""
        config, rank = self._config, identity.rank
        base = {**os.environ, **meeting_point(*self._meeting_point, os.environ)}
        try:
            process = subprocess.Popen(
                config.command,
                env={**rank_environ(config, identity, base), VARIABLE: self._recordings.name, **extra},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=self._in_child,
                bufsize=0,
            )
        except OSError as error:
            raise ResourceError(
                error.errno, f"rank {rank} cannot be started as {config.command[0]}: {error}"
            ) from error
        worker = Worker(rank, process, self._streams(rank, process))
        if self.outlived:
            self._guard.keep_output(process.pid, [*zip(map(Stream.fileno, worker.streams), self._outflows(rank))])
        else:
            self._guard.add(process.pid)
        self._workers.append(worker)
        self.say(f"rank {rank} is pid {process.pid}")
        return worker

    def _outflows(self, rank: int) -> Iterator[Outflow]:
        """Yield where a rank's output and errors go, as the guard shall know it."""
        config = self._config
        prefix = prefix_of(rank, config.num_proc).decode() if config.prefix else ""
        for fd, ending in ((1, "out"), (2, "err")):
            path = None if config.output_dir is None else self._path(rank, ending)
            yield Outflow(fd, prefix, config.timestamps, path)

    def _path(self, rank: int, ending: str) -> str:
        assert self._config.output_dir is not None
        return os.path.join(self._config.output_dir, f"rank.{rank}.{ending}")

    def _streams(self, rank: int, process: subprocess.Popen[bytes]) -> Tuple[Stream, ...]:
        config = self._config
        streams: List[Stream] = []
        for pipe, sink, ending in zip((process.stdout, process.stderr), self._sinks, ("out", "err")):
            assert pipe is not None  # both were asked for
            prefix = prefix_of(rank, config.num_proc) if config.prefix else b""
            shown = sink if rank == 0 or config.output_dir is None else None
            if config.output_dir is None:
                streams.append(Stream(pipe, shown, prefix, config.timestamps))
            else:
                path = self._path(rank, ending)
                streams.append(FileStream(pipe, path, sink=shown, prefix=prefix, timestamps=config.timestamps))
        self._reading += streams
        return tuple(streams)

    def _turn(self, until: Optional[float]) -> None:
        """Wait for something to do, at most ``until``, and do it."""
        handlers = {
            self._woken.fileno(): (select.POLLIN, lambda: None),
            self._recordings.fileno(): (select.POLLIN, self._recordings.hear),
            **self.others(),
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
                self.dump_wanted()
            elif number in grace.FORWARDED:
                self.forward(number)
            elif number != signal.SIGCHLD:
                self.stop(number)
        if signal.SIGCHLD in numbers:
            self._look()
        if self._next_sample is not None and self._next_sample <= time.monotonic():
            self._next_sample = max(self._next_sample + INTERVAL, time.monotonic())
            self.sampled(self._recordings.samples(self._rails))
        if self._trace is not None and self._trace.next <= time.monotonic():
            self._trace_now()
        if self._config.elastic is not None:
            self._forget_ended()
        while self._signals_due and self._signals_due[0][0] <= time.monotonic():
            self._look()  # a rank that ended by now ended by itself
            self._dump_if_due()
            self._send(self._signals_due.pop(0)[1])

    def _show_questions(self) -> None:
        """Pass on what ranks have printed that now wait for an answer."""
        now = time.monotonic()
        for worker in self._workers:
            for stream in worker.streams:
                if stream.due is not None and stream.due <= now:
                    if reads_input(worker.process.pid):
                        stream.pass_part()
                    else:
                        stream.look_later()

    def _forget_ended(self) -> None:
        """Forget ranks of which nothing more can come or be asked: an elastic job may lose any number."""
        for worker in [worker for worker in self._workers if worker.exit is not None]:
            printing = any(stream in self._reading for stream in worker.streams)
            if not printing and not self._recordings.has(worker.rank):
                worker.process.wait()
                self._workers.remove(worker)
                self._forgotten.append(worker)

    def _pump(self, stream: Stream) -> None:
        if not stream.pump():
            self._reading.remove(stream)
            stream.close()

    def _trace_now(self, last: bool = False) -> None:
        """Tell what the ranks have done, unless the last news have not been taken yet."""
        if self._trace is None:
            return
        begin, used = time.monotonic(), time.thread_time()
        if last or self.may_trace():
            self.traced(self._recordings.news(last))
            if self._trace is not None:  # nobody wants to know any more
                self._trace.looked(begin, time.thread_time() - used, self._recordings.fill)
        else:
            self._trace.postpone(begin)

    def _dump_if_due(self) -> None:
        if self._dump_due:
            self._dump()

    def _dump(self, window: float = 0.0) -> None:
        self._dump_due = False
        self.dumped(self._recordings.take((worker.exit for worker in self._workers), window))

    @property
    def _next_trace(self) -> Optional[float]:
        return None if self._trace is None else self._trace.next

    @property
    def _next_signal(self) -> Optional[float]:
        return self._signals_due[0][0] if self._signals_due else None

    def _write(self, sink: Outlet) -> None:
        if not sink.write_some():
            self.stop(signal.SIGPIPE)  # nobody reads our output any more

    def _look(self) -> None:
        """Find out which ranks have ended."""
        self._looks += 1
        now = time.monotonic()
        ended = [worker for worker in self._workers if worker.look(self._looks, self._stopping)]
        for worker in ended:
            self.say(f"{worker.exit}")
            self.ended(worker)
            failed = worker.exit is not None and worker.exit.failed
            if not failed and self._config.elastic is not None:
                self._recordings.let_go(worker.rank)
            failed = failed and self.ends_job(worker)
            self._dump_due |= failed
            if failed and not self._signals_due and not self._stopping:
                self._signals_due = grace.when_failed(now, self._config.grace)
        if not ended and now > self._orphans_seen + 1.0:  # looking for them is not free
            self._orphans_seen = now
            self._orphans()

    def stop(self, number: int) -> None:
        """Somebody wants the ranks to stop: pass that on, and insist. Told twice, stop at once."""
        now = time.monotonic()
        if self._stop_signal:
            self._signals_due = [(now, signal.SIGKILL)]
        else:
            self._stop_signal = number
            self._signals_due = grace.when_told(number, now, self._config.grace)

    def forward(self, number: int) -> None:
        """Pass a signal on that means something to the program alone: to ranks, and not to what they have started."""
        for worker in self._workers:
            if worker.exit is None:
                os.kill(worker.process.pid, number)  # not waited for: the pid is still its own

    def _send(self, number: int) -> None:
        """Send a signal to all ranks and to what they started. A pid stays a rank's until ``run`` waits for it."""
        self._stopping = True
        for worker in self._workers:
            self._signal(worker, number)

    def signal_rank(self, rank: int, number: int) -> None:
        """Send a signal to a rank and to what it has started, if it is known. A zombie keeps its pid until then."""
        for worker in self._workers:
            if worker.rank == rank:
                self._signal(worker, number)

    @staticmethod
    def _signal(worker: Worker, number: int) -> None:
        signal_group(worker.process.pid, number)
        if number != signal.SIGKILL:
            signal_group(worker.process.pid, signal.SIGCONT)  # a stopped process would not hear it

    @property
    def _known_workers(self) -> Sequence[Worker]:
        """Those that run or have just ended, and the last ones that were forgotten."""
        return (*self._forgotten, *self._workers)

    def _orphans(self) -> List[int]:
        """Return the living processes that ranks left behind; the dead ones are waited for."""
        known = {worker.process.pid for worker in self._workers} | {self._guard.pid}
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
        begin = time.monotonic()
        politely = not self._stopping
        orphans = self._orphans()
        while orphans:
            now = time.monotonic()
            if now > begin + 4 * grace.KILL_GRACE:
                self.say(f"processes {orphans} cannot be killed")
                return
            number = signal.SIGTERM if politely and now < begin + grace.KILL_GRACE else signal.SIGKILL
            for pid in orphans:
                os.kill(pid, number)  # our own child, not waited for: the pid cannot be anybody else's
            self._send(number)
            self._turn(now + 0.02)
            orphans = self._orphans()

    def _last_output(self) -> None:
        """Forward what is still in the pipes, and wait for its reader; not for long if told to stop."""
        end = time.monotonic() + LAST_OUTPUT
        while self._reading and time.monotonic() < end:
            self._turn(end)
            if not self._stop_signal and any(sink.backlog >= BACKLOG_LIMIT for sink in self._sinks):
                end = time.monotonic() + LAST_OUTPUT
        for worker in self._workers:
            for stream in worker.streams:
                stream.close()
        self._reading = []
        while any(sink.backlog for sink in self._sinks) and not (self._stop_signal and time.monotonic() >= end):
            self._turn(end if self._stop_signal else None)
