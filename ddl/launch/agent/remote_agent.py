"""What an agent does while the ranks of its host run: it tells ddlrun what they print and how they end, and obeys it.

remote.py is the program around it; host_agent.py has the loop.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import sys
import time
import weakref
from typing import Any, List, Mapping, MutableMapping, Optional, Sequence, Tuple

from ddl.bootstrap.environ import Identity
from ddl.errors import PeerLost
from ddl.launch.agent import grace
from ddl.launch.agent.clocks import clock_message
from ddl.launch.agent.control import Assignment, cut_off
from ddl.launch.agent.dumps import keep_dumps, pieces_of
from ddl.launch.agent.host_agent import HostAgent, Worker
from ddl.launch.agent.loop import Handlers
from ddl.records.dump import JobEnd, RankDump
from ddl.records.follow import RankNews, news_message, news_pieces
from ddl.records.living import WINDOW
from ddl.records.sample import RankSample
from ddl.store.watch import HostAgentClient
from ddl.text.rank_names import name_ranks

__all__ = ["RemoteHostAgent"]

_FRAME = 128 << 10  # bytes of output in one message; JSON may take six times as much


class _SinkToDdlrun:
    """Where the output of this host's ranks goes: to ddlrun, and on from there. An output.Outlet."""

    waiting = False  # nothing to write here: what is on its way has been sent

    def __init__(self, stream: int, control: HostAgentClient) -> None:
        self.fd = -1
        self.backlog = 0  # bytes that ddlrun has not passed on yet
        self._stream = stream
        self._control: Optional[HostAgentClient] = control
        self._sources: MutableMapping[object, int] = weakref.WeakKeyDictionary()  # those that may still print
        self._count = 0

    def put(self, data: bytes, source: object) -> None:
        number = self.number_of(source)
        for start in range(0, len(data), _FRAME):
            piece = data[start : start + _FRAME]
            if self._control is None:
                return
            self.backlog += len(piece)
            message = {"type": "out", "stream": self._stream, "source": number, "data": piece.decode("latin-1")}
            try:
                self._control.send(message)
            except PeerLost:  # the loop finds out by itself
                self.close()

    def number_of(self, source: object) -> int:
        """Return by which number ddlrun knows a source of lines."""
        if source not in self._sources:
            self._sources[source] = self._count
            self._count += 1
        return self._sources[source]

    def write_some(self) -> bool:
        return True

    def close(self) -> None:
        """ddlrun is gone, and nobody wants output any more."""
        self._control = None
        self.backlog = 0


class RemoteHostAgent(HostAgent):
    """The ranks of one host of several. Used once."""

    def __init__(self, assignment: Assignment, control: HostAgentClient, secret: bytes) -> None:
        self._to_ddlrun = (_SinkToDdlrun(1, control), _SinkToDdlrun(2, control))
        super().__init__(assignment.config(), self._to_ddlrun)
        self._assignment = assignment
        self._control = control
        self._secret = secret
        self._lost = False
        self._finished = False  # ddlrun needs this host no more
        self._untaken = 0  # messages with operations of ranks that ddlrun has not written yet

    def run(self, meeting_point: Tuple[str, int]) -> int:
        self.run_ranks(self._begin, meeting_point)
        self._send_up({"type": "done"})
        return self.status()

    def over(self) -> bool:
        """Return whether all ranks have ended, and nobody will want to know any more what they have done."""
        return self.idle and (self._finished or self._lost or self._stopping or bool(self._stop_signal))

    def status(self) -> int:
        """Return the agent's exit status."""
        return 1 if self._lost else 0

    def _begin(self) -> List[Identity]:
        return self._assignment.identities(self._control.address, self._secret)

    def started(self) -> None:
        """Hear what has come together with the word to begin: the connection will not be readable because of that."""
        self._hear()

    def say(self, text: str) -> None:
        if self._assignment.verbose:
            self._send_up({"type": "say", "text": text})

    def ended(self, worker: Worker) -> None:
        for stream in worker.streams:  # the last words come before the end
            while stream in self._reading and select.select([stream], [], [], 0)[0]:
                self._pump(stream)
        entry = worker.exit
        assert entry is not None
        fields = {"rank": entry.rank, "pid": entry.pid, "code": entry.code, "stopped": entry.stopped}
        source = self._to_ddlrun[1].number_of(worker.streams[1])
        self._send_up({"type": "exit", **fields, "tail": worker.streams[1].tail, "source": source})

    def dumped(self, dumps: Sequence[RankDump]) -> None:
        for dump in dumps:
            for piece in pieces_of(dump):
                self._send_up(piece)
        self._send_up({"type": "recorded"})

    def sampled(self, samples: Sequence[RankSample]) -> None:
        self._send_up({"type": "samples", "ranks": [vars(sample) for sample in samples]})

    def traced(self, news: Sequence[RankNews]) -> None:
        for piece in news_pieces(news):
            self._untaken += 1
            self._send_up({"type": "operations", "news": [news_message(told) for told in piece]})

    def may_trace(self) -> bool:
        return self._untaken == 0

    def others(self) -> Handlers:
        return {} if self._lost else {self._control.fileno(): (select.POLLIN, self._hear)}

    def _hear(self) -> None:
        while True:
            message = self._control.receive()
            if message is None:
                return self._lose()
            if not message:
                return
            self.obey(message)

    def obey(self, message: Mapping[str, Any]) -> None:
        """Do what ddlrun wants."""
        if message["type"] == "signal":
            # Its own word to stop, as Slurm gives it to both, an agent has heard already: that is no second one.
            if message["number"] == signal.SIGKILL or not self._stop_signal:
                super().stop(message["number"])
        elif message["type"] == "forward":
            self.forward(message["number"])
        elif message["type"] == "finish":
            self._finished = True
        elif message["type"] == "sample":
            self.sample_ranks(message["rails"])
        elif message["type"] == "clock":
            self._send_up(clock_message(message))
        elif message["type"] == "trace":
            self.trace_ranks(message["wanted"])
        elif message["type"] == "traced":
            self._untaken -= 1
        elif message["type"] == "records":
            if message["now"]:
                self._dump(WINDOW)
            else:
                self._dump_due = True
        elif message["type"] == "took":
            sink = self._to_ddlrun[message["stream"] - 1]
            sink.backlog = max(0, sink.backlog - message["bytes"])

    def stop(self, number: int) -> None:
        """Somebody on this host, not ddlrun, wants us to stop (a node is shut down): that ends the whole job."""
        self._send_up({"type": "problem", "text": f"its agent was told to stop by {signal.Signals(number).name}"})
        super().stop(number)

    def _send_up(self, message: Mapping[str, Any]) -> None:
        try:
            if not self._lost:
                self._control.send(dict(message))
        except PeerLost:
            self._lose()

    def _lose(self) -> None:
        if self._lost:
            return
        self._lost = True
        running = [worker for worker in self._workers if worker.exit is None]
        for sink in self._to_ddlrun:
            sink.close()
        self.trace_ranks(False)
        self.cut_off(running)

    def cut_off(self, running: List[Worker]) -> None:
        """ddlrun is gone, and these ranks still run: end them."""
        if running and not self._stopping and not self._stop_signal:
            self._last_words(running)
        self._signals_due = grace.when_told(signal.SIGTERM, time.monotonic(), self._config.grace)

    def _last_words(self, running: List[Worker]) -> None:
        """Say why the ranks are ended: where ssh or srun may still carry it, and in the files of their output.

        What they did last is kept on this host: there is no ddlrun that could do it.
        """
        ranks = name_ranks(sorted(worker.rank for worker in running))
        message = cut_off(socket.gethostname(), self._control.address, self._control.silent(), ranks)
        dumps = self._recordings.take(worker.exit for worker in self._workers)
        lines = [message]
        if dumps:
            end = JobEnd(self._assignment.size, launcher_lost=message)
            lines += keep_dumps(self._assignment.dump_dir, dumps, end).lines
        with contextlib.suppress(OSError):  # nobody may be there to read it
            print(*lines, sep="\n", file=sys.stderr, flush=True)
        for worker in running:
            with contextlib.suppress(OSError):
                worker.streams[1].add(message.encode() + b"\n")
