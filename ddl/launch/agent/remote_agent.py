"""What an agent does while the ranks of its host run: it tells ddlrun what they print and how they end, and obeys it.

remote.py is the program around it; host_ranks.py has the loop. In an elastic job ranks come and go one by one:
elastic_agent.py.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import sys
import weakref
from typing import Any, Callable, List, Mapping, MutableMapping, Optional, Protocol, Sequence, Tuple

from ddl.bootstrap.environ import Identity
from ddl.errors import PeerLost
from ddl.launch.agent.clocks import clock_message
from ddl.launch.agent.control import Assignment, cut_off
from ddl.launch.agent.dumps import keep_dumps, pieces_of
from ddl.launch.agent.host_ranks import HostRanks
from ddl.launch.agent.loop import Handlers
from ddl.launch.agent.rank_start import Worker
from ddl.records.dump import JobEnd, RankDump
from ddl.records.follow import RankNews, news_message, news_pieces
from ddl.records.living import WINDOW
from ddl.records.sample import RankSample
from ddl.store.watch import HostAgentClient
from ddl.text.rank_names import name_ranks

__all__ = ["AgentCourse", "FixedAgentCourse", "RemoteHostAgent"]

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


class AgentCourse(Protocol):
    """How the ranks of a host come and go, and when its agent does."""

    def over(self) -> bool:
        """Return whether the agent leaves although ddlrun has not said so, now that no rank runs."""

    def status(self) -> int:
        """Return the agent's exit status."""

    def obey(self, message: Mapping[str, Any]) -> None:
        """Do what ddlrun wants of this kind of job alone."""

    def ended(self, worker: Worker) -> None:
        """A rank has ended, and ddlrun has been told."""

    def stop(self, number: int) -> None:
        """Somebody on this host, not ddlrun, wants us to stop (a node is shut down)."""

    def cut_off(self, running: List[Worker]) -> None:
        """ddlrun is gone, and these ranks still run."""


class RemoteHostAgent:
    """The agent of one host of several, the ``RankOwner`` of its ranks. Used once."""

    def __init__(
        self,
        assignment: Assignment,
        control: HostAgentClient,
        secret: bytes,
        course: Callable[[RemoteHostAgent], AgentCourse],
    ) -> None:
        self._to_ddlrun = (_SinkToDdlrun(1, control), _SinkToDdlrun(2, control))
        self.ranks = HostRanks(assignment.config(), self._to_ddlrun, self)
        self.assignment = assignment
        self._control = control
        self.secret = secret
        self.lost = False  #: ddlrun is gone
        self.finished = False  #: ddlrun needs this host no more
        self._untaken = 0  # messages with operations of ranks that ddlrun has not written yet
        self._course = course(self)

    def run(self, meeting_point: Tuple[str, int]) -> int:
        """Do this host's part of the job; return the agent's exit status."""
        self.ranks.run_ranks(self._begin, meeting_point)
        self.send_up({"type": "done"})
        return self._course.status()

    def _begin(self) -> List[Identity]:
        return self.assignment.identities(self.store, self.secret)

    @property
    def store(self) -> str:
        """The address of the job's store."""
        return self._control.address

    @property
    def store_also(self) -> Tuple[str, ...]:
        """Its addresses on other networks."""
        return self._control.further_addresses

    # --- RankOwner ---

    def started(self) -> None:
        """Hear what has come together with the word to begin: the connection will not be readable because of that."""
        self._hear()

    def ended(self, worker: Worker) -> None:
        """Tell ddlrun how the rank ended, but its last words before."""
        self.ranks.read_out(worker)
        entry = worker.exit
        assert entry is not None
        fields = {name: getattr(entry, name) for name in ("rank", "pid", "code", "stopped", "out_of_memory")}
        source = self._to_ddlrun[1].number_of(worker.streams[1])
        self.send_up({"type": "exit", **fields, "tail": worker.streams[1].tail, "source": source})
        self._course.ended(worker)

    def dumped(self, dumps: Sequence[RankDump]) -> None:
        """Send them to ddlrun."""
        for dump in dumps:
            for piece in pieces_of(dump):
                self.send_up(piece)
        self.send_up({"type": "recorded"})

    def all_ended(self) -> None:
        """Nothing is to be done before the last output has come."""

    def sampled(self, samples: Sequence[RankSample]) -> None:
        """Send them to ddlrun."""
        self.send_up({"type": "samples", "ranks": [vars(sample) for sample in samples]})

    def traced(self, news: Sequence[RankNews]) -> None:
        """Send them to ddlrun."""
        for piece in news_pieces(news):
            self._untaken += 1
            self.send_up({"type": "operations", "news": [news_message(told) for told in piece]})

    def dump_wanted(self) -> None:
        """Ddlrun alone decides that."""

    def stop(self, number: int) -> None:
        """Somebody on this host, not ddlrun, wants us to stop."""
        self._course.stop(number)

    def say(self, text: str) -> None:
        """Have ddlrun tell the user, if he wants to know."""
        if self.assignment.verbose:
            self.send_up({"type": "say", "text": text})

    def turned(self) -> None:
        """Nothing else is to be done."""

    def may_trace(self) -> bool:
        """Return whether ddlrun has written all operations that it was sent."""
        return self._untaken == 0

    def over(self) -> bool:
        """Return whether all ranks have ended, and nobody will want to know any more what they have done."""
        left_alone = self.finished or self.lost or not self.ranks.end_plan.goes_on
        return self.ranks.idle and (left_alone or self._course.over())

    def deadline(self) -> Optional[float]:
        """Return None: ddlrun has the deadlines."""
        return None

    def others(self) -> Handlers:
        """Wait for what ddlrun says."""
        return {} if self.lost else {self._control.fileno(): (select.POLLIN, self._hear)}

    # --- the connection to ddlrun ---

    def _hear(self) -> None:
        while True:
            message = self._control.receive()
            if message is None:
                return self._lose()
            if not message:
                return
            self._obey(message)

    def _obey(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "signal":
            # Its own word to stop, as Slurm gives it to both, an agent has heard already: that is no second one.
            if message["number"] == signal.SIGKILL or not self.ranks.end_plan.stop_signal:
                self.ranks.end_plan.stop(message["number"])
        elif message["type"] == "forward":
            self.ranks.forward(message["number"])
        elif message["type"] == "finish":
            self.finished = True
        elif message["type"] == "sample":
            self.ranks.sample_ranks(message["rails"])
        elif message["type"] == "clock":
            self.send_up(clock_message(message))
        elif message["type"] == "trace":
            self.ranks.trace_ranks(message["wanted"])
        elif message["type"] == "traced":
            self._untaken -= 1
        elif message["type"] == "records":
            if message["now"]:
                self.ranks.dump(WINDOW)
            else:
                self.ranks.dump_at_end()
        elif message["type"] == "took":
            sink = self._to_ddlrun[message["stream"] - 1]
            sink.backlog = max(0, sink.backlog - message["bytes"])
        else:
            self._course.obey(message)

    def send_up(self, message: Mapping[str, Any]) -> None:
        """Send a message to ddlrun, if it is still there."""
        try:
            if not self.lost:
                self._control.send(dict(message))
        except PeerLost:
            self._lose()

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        running = [worker for worker in self.ranks.workers if worker.exit is None]
        for sink in self._to_ddlrun:
            sink.close()
        self.ranks.trace_ranks(False)
        self._course.cut_off(running)

    def last_words(self, running: List[Worker]) -> None:
        """Say why the ranks are ended: where ssh or srun may still carry it, and in the files of their output.

        What they did last is kept on this host: there is no ddlrun that could do it.
        """
        ranks = name_ranks(sorted(worker.rank for worker in running))
        control = self._control
        message = cut_off(socket.gethostname(), control.address, control.silent(), ranks, control.broken)
        dumps = self.ranks.take_dumps()
        lines = [message]
        if dumps:
            end = JobEnd(self.assignment.size, launcher_lost=message)
            lines += keep_dumps(self.assignment.dump_dir, dumps, end).lines
        with contextlib.suppress(OSError):  # nobody may be there to read it
            print(*lines, sep="\n", file=sys.stderr, flush=True)
        for worker in running:
            with contextlib.suppress(OSError):
                worker.streams[1].add(message.encode() + b"\n")


class FixedAgentCourse:
    """All ranks of the host begin together, and the first that fails ends the job. Without ddlrun they end."""

    def __init__(self, agent: RemoteHostAgent) -> None:
        self._agent = agent

    def over(self) -> bool:
        return False

    def status(self) -> int:
        return 1 if self._agent.lost else 0

    def obey(self, message: Mapping[str, Any]) -> None:
        pass

    def ended(self, worker: Worker) -> None:
        pass

    def stop(self, number: int) -> None:
        """That ends the whole job."""
        text = f"its agent was told to stop by {signal.Signals(number).name}"
        self._agent.send_up({"type": "problem", "text": text})
        self._agent.ranks.end_plan.stop(number)

    def cut_off(self, running: List[Worker]) -> None:
        """End them."""
        if running and self._agent.ranks.end_plan.goes_on:
            self._agent.last_words(running)
        self._agent.ranks.end_plan.cut_off()
