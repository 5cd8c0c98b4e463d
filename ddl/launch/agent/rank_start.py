"""Starts the processes of ranks on this machine, and says where their output goes.

A rank is a session of its own, so that a signal reaches it with all that it has started. Rank 0 alone has ddlrun's
standard input.
"""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Iterator, List, Mapping, Optional, Tuple

from ddl.bootstrap.environ import Identity
from ddl.errors import ResourceError
from ddl.launch.agent.failures import Exit
from ddl.launch.agent.guard import Guard, Outflow
from ddl.launch.agent.output import Outlet, Stream, prefix_of
from ddl.launch.agent.processes import die_with_parent
from ddl.launch.agent.rank_environ import meeting_point, rank_environ
from ddl.launch.ask.config import RunConfig
from ddl.records.process import OutOfMemory, process_name

__all__ = ["RankStarter", "Worker"]


class Worker:
    """One rank: its process, its output and, in the end, its exit."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], streams: Tuple[Stream, ...]) -> None:
        self.rank = rank
        self.process = process
        self.streams = streams
        self.exit: Optional[Exit] = None

    def look(self, seen: int, stopped: bool, out_of_memory: OutOfMemory) -> bool:
        """Return whether it has ended since the last look.

        It stays a zombie until the job ends, or until an elastic job forgets it, so that its pid keeps its meaning.
        """
        if self.exit is not None:
            return False
        result = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        pid, code = self.process.pid, result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        asked = code == -signal.SIGKILL and not stopped
        words = out_of_memory.words(pid, process_name(pid)) if asked else None
        self.exit = Exit(self.rank, pid, code, seen, stopped, out_of_memory=words)
        return True


class RankStarter:
    """Starts ranks, and tells ``guard`` of each. Used by the main thread: the death of its parent reaches a rank.

    ``sinks`` are where their output and their errors go, unless to files. ``meeting_point``: as in
    ``HostRanks.run_ranks``. ``outlived``: they go on if this process is killed.
    """

    def __init__(
        self,
        config: RunConfig,
        sinks: Tuple[Outlet, Outlet],
        guard: Guard,
        meeting_point: Tuple[str, int],
        *,
        outlived: bool,
    ) -> None:
        self._config = config
        self._sinks = sinks
        self._guard = guard
        self._meeting_point = meeting_point
        self._outlived = outlived
        self._in_child = None if outlived else die_with_parent()

    def start(self, identity: Identity, extra: Mapping[str, str]) -> Worker:
        """Start a process, with ``extra`` in its environment. ResourceError if that is impossible."""
        config, rank = self._config, identity.rank
        base = {**os.environ, **meeting_point(*self._meeting_point, os.environ)}
        try:
            process = subprocess.Popen(
                config.command,
                env={**rank_environ(config, identity, base), **extra},
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
        if self._outlived:
            self._guard.keep_output(process.pid, [*zip(map(Stream.fileno, worker.streams), self._outflows(rank))])
        else:
            self._guard.add(process.pid)
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
            file = None if config.output_dir is None else open(self._path(rank, ending), "wb", buffering=0)
            streams.append(Stream(pipe, shown, prefix, config.timestamps, file=file))
        return tuple(streams)
