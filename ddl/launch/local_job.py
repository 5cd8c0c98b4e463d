"""A job whose ranks all run on this machine: its store, its agent, and how it ends."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from typing import List, Optional

from ddl.bootstrap.environ import Identity
from ddl.launch.config import RunConfig
from ddl.launch.failures import Exit, first_failure, report
from ddl.launch.host_agent import HostAgent, Worker
from ddl.launch.output import Sink
from ddl.launch.rank_environ import keep_port
from ddl.store.server import StoreServer

__all__ = ["LocalJob"]


class LocalJob(HostAgent):
    """One job on this machine, from its start to its end. Used once, by the main thread."""

    def __init__(self, config: RunConfig) -> None:
        self._errors = Sink(2)
        super().__init__(config, (Sink(1), self._errors))

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        with contextlib.ExitStack() as stack:
            port = stack.enter_context(keep_port())
            self.run_ranks(lambda: self._begin(stack), ("127.0.0.1", port))
        return self._conclude()

    def _begin(self, stack: contextlib.ExitStack) -> List[Identity]:
        secret, size = secrets.token_bytes(32), self._config.num_proc
        self._server = stack.enter_context(StoreServer(secret, size, start=False))
        self.say(f"the store is at {self._server.address}")
        return [Identity(rank, size, rank, size, 0, 1, self._server.address, secret) for rank in range(size)]

    def started(self) -> None:
        """Let the store serve: not before, as a fork copies only one thread, but the locks of all."""
        self._server.start()

    def ended(self, worker: Worker) -> None:
        """Tell the ranks that wait for this one in ``init`` how it ended."""
        self._server.ended(worker.rank, str(worker.exit))

    def say(self, text: str) -> None:
        """Tell the user, if he wants to know."""
        if self._config.verbose:
            print(f"ddlrun: {text}", file=sys.stderr, flush=True)

    @property
    def failed(self) -> Optional[Exit]:
        """The exit that the job's failure began with, None without one. When all ranks have ended."""
        exits = [worker.exit for worker in self._workers if worker.exit is not None]
        return first_failure(exits, self._server.first_failure)

    def _conclude(self) -> int:
        if self._stop_signal:
            print(f"ddlrun: stopped by {signal.Signals(self._stop_signal).name}", file=sys.stderr)
            return 128 + self._stop_signal
        failed = self.failed
        if failed is None:
            return 0
        stream = self._workers[failed.rank].streams[1]
        above = self._errors.last is stream
        print(report(failed, self._server.first_failure, stream.tail, above), file=sys.stderr)
        return failed.status
