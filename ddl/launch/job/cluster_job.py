"""A job on several hosts, on ddlrun's side: it starts agents, checks them, gives them their ranks, and ends them.

One thread runs one loop, as in host_ranks.py. The agents speak over the store's server (control.py), which has its own
thread and wakes the loop. No rank starts before every host's agent has called and every host is fit. The job ends as a
job on one machine does. Besides, a host whose agent has gone before its ranks have ended counts as a failed rank.
"""

from __future__ import annotations

import collections
import contextlib
import os
import secrets
import select
import signal
import socket
import sys
import time
from functools import partial
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

from ddl.bootstrap.environ import Settings
from ddl.launch.agent import grace
from ddl.launch.agent.control import Entrance, Invitation, assignment_of, gone_since
from ddl.launch.agent.dumps import KeptDumps, keep_dumps
from ddl.launch.agent.failures import Exit, first_failure
from ddl.launch.agent.guard import Guard
from ddl.launch.agent.host_ranks import LAST_OUTPUT
from ddl.launch.agent.loop import Handlers, catch_signals, drain, wait_once
from ddl.launch.agent.output import BACKLOG_LIMIT, Sink, Stream
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.hosts import bare_name
from ddl.launch.ask.placement import Placement
from ddl.launch.job.cluster_dumps import ClusterDumps
from ddl.launch.job.cluster_host import ClusterHost
from ddl.launch.job.job_display import JobDisplay
from ddl.launch.job.launches import Launches
from ddl.launch.job.rank_ends import RankEnds
from ddl.launch.launchers import Start
from ddl.launch.timeline.cluster_timeline import ClusterTimeline
from ddl.net.address import format_address, parse_address
from ddl.net.interfaces import addresses_towards
from ddl.records.dump import JobEnd, RankDump
from ddl.records.sample import RankSample
from ddl.store.messages import Message
from ddl.store.server import StoreServer

__all__ = ["ClusterJob", "and_give_up"]

_SHOWN = 3  # connections that cannot be made, before they are counted


def and_give_up(due: grace.Due) -> grace.Due:
    """Return when signals are sent, and behind them when agents are given up that are still there: a 0."""
    last, _ = due[-1]
    return [*due, (last + 2.0, 0)]


class ClusterJob:
    """One job on several hosts, from its start to its end. Used once, by the main thread.

    A ``patient`` one asks every host before it gives up, so that afterwards ``problems`` tells of each that is unfit
    and not only of the first. ``sinks`` are where the job's output and errors go.
    """

    def __init__(
        self,
        config: RunConfig,
        placement: Placement,
        starts: Sequence[Start],
        entrance: Optional[Entrance] = None,
        *,
        patient: bool = False,
        sinks: Optional[Tuple[Sink, Sink]] = None,
    ) -> None:
        self._config = config
        self._placement = placement
        self._starts = starts
        self._patient = patient
        self._entrance = entrance
        self._hosts = [
            ClusterHost(number, name, placement.ranks[number]) for number, name in enumerate(placement.hosts)
        ]
        if sinks is None:
            output = Sink(1)
            sinks = output, Sink(2, output)
        self._sinks = sinks
        self._launches = Launches(self._sinks[1])
        self._news: Deque[Tuple[int, Message]] = collections.deque()  # from the server's thread
        self._ends = RankEnds()
        self._running = False
        self._problem = ""  # why the job never began, or what failed that is no rank
        self._stop_signal = 0
        self._signals_due: List[Tuple[float, int]] = []
        self._stopping = False
        self._verdict: Optional[Message] = None  # the first one of the store
        self._dumps = ClusterDumps(lambda host, message: self._server.post(host, message))
        self._timeline = ClusterTimeline.of(config, self.tell, lambda host, message: self._server.post(host, message))

    @property
    def problems(self) -> Dict[int, str]:
        """Why hosts, by number, could not take part, or not until the end."""
        return {host.number: host.gone for host in self._hosts if host.gone}

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        self._guard = guard = Guard()
        self._woken, restore = catch_signals()
        self._news_reader, self._news_writer = socket.socketpair()
        self._news_reader.setblocking(False)
        self._display = JobDisplay(self._config, self._sinks, self._dump_wanted, self._sample)
        if self._display.requests.problem:
            self._say(self._display.requests.problem)
        secret = secrets.token_bytes(32) if self._entrance is None else self._entrance.secret
        try:
            self._display.open()
            self._prepare()
            if self._wanted:
                with self._serve(secret) as server:
                    self._server = server
                    self._launch(secret)
                    server.start()
                    self._gather()
                    self._supervise()
                    self._last_output()
                self._verdict = server.first_failure
        finally:
            self._launches.close()
            self._display.close()
            if self._timeline is not None:
                self._timeline.close()
            for sink in self._sinks:
                while sink.waiting and sink.write_some():
                    pass
            guard.dismiss()
            restore()
            self._news_reader.close()
            self._news_writer.close()
        return self._display.job_ended(self._conclude(), self._verdict)

    # What an elastic job does differently.

    def _prepare(self) -> None:
        """Find out where the job begins."""

    def _others(self) -> Handlers:
        """Return what else to wait for."""
        return self._display.requests.handlers()

    @property
    def _recording(self) -> List[ClusterHost]:
        """Return the hosts on which there may be ranks."""
        return [host for host in self._hosts if self._running and not host.over]

    def tell(self, *lines: str) -> None:
        """Print lines of ddlrun's own on stderr, behind what the ranks have printed there."""
        self._sinks[1].put("".join(f"ddlrun: {line}\n" for line in lines).encode(), self)

    # --- the beginning ---

    def _serve(self, secret: bytes) -> StoreServer:
        port = 0 if self._entrance is None else self._entrance.port
        agents = len(self._hosts)
        return StoreServer(
            secret, self._placement.size, "0.0.0.0", port, start=False, agents=agents, from_agent=self._from_agent
        )

    def _from_agent(self, host: int, message: Message) -> None:
        """Called in the server's thread."""
        message["received"] = time.monotonic()
        self._news.append((host, message))
        with contextlib.suppress(OSError):  # full: the loop will wake anyhow; closed: nobody wants to know any more
            self._news_writer.send(b"x", socket.MSG_DONTWAIT)

    def _launch(self, secret: bytes) -> None:
        for start in self._starts:
            self._launch_agents(start, secret, self._guard)

    def _launch_agents(self, start: Start, secret: bytes, guard: Optional[Guard]) -> None:
        """Start agents. ``guard`` ends what starts them if ddlrun is killed."""
        _, port = parse_address(self._server.address)
        # With an entrance, the others know where we are, and their names may not be known yet.
        others = [host.name for host in self._hosts] if self._entrance is None else []
        names = [self._hosts[number].name for number in start.hosts]
        own = addresses_towards([bare_name(name) for name in (*names, *others)])
        known = tuple(format_address(address, port) for address in own)
        self._launches.begin(start, Invitation(secret, known, start.host, self._start_timeout), guard)
        self._say(f"{start.label}: {' '.join(start.command)}")

    @property
    def _start_timeout(self) -> float:
        return Settings.from_environ({**os.environ, **dict(self._config.environ)}).start_timeout

    def _gather(self) -> None:
        """Let every host prove fit, step by step; unless patient, give up on the first that does not."""
        complaint = "can those hosts reach this one, or does a firewall keep them from it?"
        self._hear_from_all("hello", "no agent has called from", complaint)
        for host in self._fit():
            if "hello" in host.said:
                misfit = host.misfit()
                if misfit:
                    self._unfit(host, misfit)
        if self._wanted:
            self._post_all(lambda host: assignment_of(self._config, self._placement, host.number).message())
            self._hear_from_all("ready", "directory and program are still not seen to be there on", "are disks slow?")
        if self._wanted and len(self._hosts) > 1 and not self._patient:
            peers = [host.token_port for host in self._hosts]
            self._post_all(lambda host: {"type": "meet", "peers": peers})
            self._hear_from_all("met", "nothing is heard any more from", "are they very busy?")
            self._conclude_meeting()
        if self._wanted:
            self._running = True
            first = self._hosts[self._placement.host_of(0)].said["ready"]
            address, _ = parse_address(first["address"])
            for host in self._hosts:
                self._go(host, address, first["port"])
            self._display.started()
        else:
            self._signal(signal.SIGTERM)

    def _go(self, host: ClusterHost, address: str, port: int) -> None:
        """Let a host start its ranks."""
        self._server.post(host.number, {"type": "go", "address": address, "port": port})
        if self._display.sampling:
            self._server.post(host.number, {"type": "sample", "rails": self._display.shows_rails})
        if self._timeline is not None:
            self._timeline.begin(host.number, time.monotonic())

    def _sample(self) -> None:
        """Have the hosts on which ranks run send samples from now on."""
        for host in self._recording:
            self._server.post(host.number, {"type": "sample", "rails": self._display.shows_rails})

    @property
    def _wanted(self) -> bool:
        return not self._problem and not self._stop_signal

    def _fit(self) -> List[ClusterHost]:
        return [host for host in self._hosts if not host.over]

    def _post_all(self, message: Callable[[ClusterHost], Message]) -> None:
        for host in self._hosts:
            self._server.post(host.number, message(host))

    def _hear_from_all(self, kind: str, complaint: str, question: str) -> None:
        """Wait until every agent has said it, or until one cannot; if patient, also for the others."""
        deadline = time.monotonic() + self._start_timeout
        while not self._stop_signal and (self._patient or not self._problem):
            missing = [host for host in self._fit() if kind not in host.said]
            if not missing:
                break
            if time.monotonic() >= deadline:
                names = ", ".join(host.name for host in missing)
                for host in missing:
                    reason = f"{complaint} {names} within {self._start_timeout:g} s (--start-timeout); {question}"
                    self._unfit(host, reason)
                break
            self._turn(deadline)

    def _conclude_meeting(self) -> None:
        problems: List[str] = []
        for host in self._hosts:
            met = host.said.get("met", {})
            problems += met.get("problems", ())
            for warning in met.get("warnings", ()):
                print(f"ddlrun: warning: {warning}", file=sys.stderr, flush=True)
        if problems:
            shown = "; ".join(problems[:_SHOWN]) + (f"; and {len(problems) - _SHOWN} more" * (len(problems) > _SHOWN))
            self._problem = self._problem or (
                f"{shown}. Ranks could not send one another data. Let the hosts connect to one another on all TCP "
                "ports from 32768 up, or name the network that joins them (--network-interface); 'ddl doctor' with "
                "the same hosts tells more"
            )

    def _unfit(self, host: ClusterHost, reason: str) -> None:
        host.gone = reason
        self._problem = self._problem or reason

    # --- the loop ---

    def _supervise(self) -> None:
        while self._running and not all(host.over for host in self._hosts):
            self._turn(self._signals_due[0][0] if self._signals_due else None)

    def _turn(self, until: Optional[float]) -> None:
        handlers: Dict[int, Tuple[int, Callable[[], None]]] = {
            self._woken.fileno(): (select.POLLIN, lambda: None),
            self._news_reader.fileno(): (select.POLLIN, lambda: None),
            **self._others(),
        }
        for stream in self._launches.reading:
            handlers[stream.fileno()] = (select.POLLIN, partial(self._pump, stream))
        for sink in self._sinks:
            if sink.waiting:
                handlers[sink.fd] = (select.POLLOUT, partial(self._write, sink))
        wait_once(handlers, self._dumps.deadline(until))
        for number in drain(self._woken):
            if number == signal.SIGCHLD:
                self._look_at_launches()
            elif number == signal.SIGQUIT:
                self._dump_wanted()
            elif number in grace.FORWARDED:
                self._forward(number)
            else:
                self._told(number)
        drain(self._news_reader)
        while self._news:
            host, message = self._news.popleft()
            self._heard(self._hosts[host], message)
        self._confirm()
        if self._dumps.complete(self._hosts):
            dumps = self._dumps.take()
            kept = self._keep_dumps(dumps, None)
            if dumps or self._dumps.wanted:
                self.tell(*kept.lines)
            self._display.requests.answer(kept.message)
        while self._signals_due and self._signals_due[0][0] <= time.monotonic():
            self._signal(self._signals_due.pop(0)[1])

    def _pump(self, stream: Stream) -> None:
        if not stream.pump():
            self._launches.reading.remove(stream)

    def _write(self, sink: Sink) -> None:
        if not sink.write_some():
            self._told(signal.SIGPIPE)  # nobody reads our output any more

    def _heard(self, host: ClusterHost, message: Message) -> None:
        kind = message["type"]
        if kind == "gone":
            if not host.over:
                self._lost(host, gone_since(message["silent"]))
        elif kind in ("hello", "ready", "met"):
            host.said[kind] = message
            if kind == "hello":
                self._say(f"host {host.name} is {message['name']}, Python {message['python']}")
        elif kind == "out":
            data = message["data"].encode("latin-1")
            self._sinks[message["stream"] - 1].put(data, host.source(message["source"]))
            host.unasked[message["stream"]] += len(data)
        elif kind == "say":
            self._say(f"host {host.name}: {message['text']}")
        elif kind == "exit":
            self._exited(host, message)
        elif kind == "problem":
            self._lost(host, message["text"])
        elif kind == "samples" and not host.over:
            samples = [RankSample.parse(sample) for sample in message["ranks"]]
            self._display.take(samples, self._running_ranks, self._server.late, self._server.first_failure)
        elif kind in ("operations", "clock") and self._timeline is not None:
            self._timeline.heard(host.number, host.name, message, message["received"])
            self._timeline.verdict(self._server.first_failure)
        elif kind in ("record", "recorded"):
            self._dumps.heard(host, message)
        elif kind == "done":
            host.done = True

    def _exited(self, host: ClusterHost, message: Mapping[str, Any]) -> None:
        entry = self._take_note(host, message)
        if entry.failed:
            self._stop_soon()
        self._finish_if_all_have_ended()

    def _finish_if_all_have_ended(self) -> None:
        """Let the agents end. Until then they stay: if ranks fail, those that have ended well may be the cause."""
        ended = self._ends.ranks
        if all(ended.issuperset(host.ranks) for host in self._hosts if not host.over):
            self._post_all(lambda host: {"type": "finish"})

    @property
    def _running_ranks(self) -> int:
        """How many ranks run."""
        return self._placement.size - len(self._ends.ranks)

    def _take_note(self, host: ClusterHost, message: Mapping[str, Any]) -> Exit:
        """Keep how a rank has ended, and tell the store."""
        entry = self._ends.add(host, message, self._stopping)
        self._server.ended(entry.rank, str(entry))
        self._display.forget(entry.rank, str(entry))
        if self._timeline is not None and entry.failed:
            self._timeline.note(str(entry))
        return entry

    def _lost(self, host: ClusterHost, reason: str) -> None:
        host.gone = reason
        if not self._problem:
            self._problem = f"{host.label}: {reason}"
        if self._running:
            for rank in set(host.ranks) - self._ends.ranks:
                how = f"rank {rank} was lost with host {host.name}: {reason}"
                self._server.ended(rank, f"{how},")
                self._display.forget(rank, how)
            self._stop_soon()
            self._finish_if_all_have_ended()

    def _stop_soon(self) -> None:
        """Something failed: the others get a moment to fail by themselves, and say so."""
        if not self._signals_due and not self._stopping:
            self._signals_due = and_give_up(grace.when_failed(time.monotonic(), self._config.grace))
            self._dumps.ask_at_end(self._recording)

    def _dump_wanted(self) -> None:
        """Somebody wants to know what the ranks do now."""
        if self._running:
            self._dumps.ask_now(self._recording, wanted=True)
            return
        text = "no rank runs yet"
        self.tell(text)
        self._display.requests.answer({"folder": "", "text": text})

    def _keep_dumps(self, dumps: Sequence[RankDump], failed: Optional[Exit]) -> KeptDumps:
        """Write the dumps, if there are any."""
        end = JobEnd(
            size=self._placement.size,
            verdict=self._server.first_failure,
            first=None if failed is None else failed.rank,
            exits={entry.rank: str(entry) for entry in self._ends.exits if not entry.stopped},
            last_lines=self._ends.last_lines,
        )
        return keep_dumps(self._config.dump_dir, dumps, end)

    def _confirm(self) -> None:
        """Tell agents what has been passed on, unless nobody takes it from us fast enough."""
        for host in self._hosts:
            for stream, sink in enumerate(self._sinks, 1):
                if host.unasked[stream] and sink.backlog < BACKLOG_LIMIT:
                    self._server.post(host.number, {"type": "took", "stream": stream, "bytes": host.unasked[stream]})
                    host.unasked[stream] = 0

    def _forward(self, number: int) -> None:
        """Pass a signal on to the ranks that means something to the program alone."""
        self._post_all(lambda _: {"type": "forward", "number": number})

    def _told(self, number: int) -> None:
        """Somebody wants ddlrun to stop. Told twice, stop at once."""
        now = time.monotonic()
        if self._stop_signal:
            self._signals_due = and_give_up([(now, signal.SIGKILL)])
        else:
            self._stop_signal = number
            self._signals_due = and_give_up(grace.when_told(number, now, self._config.grace))

    def _signal(self, number: int) -> None:
        """Let every agent stop its ranks by a signal; 0: give up on agents that are still there."""
        self._stopping = True
        for host in self._hosts:
            if number:
                self._server.post(host.number, {"type": "signal", "number": int(number)})
            elif not host.over:
                self._lost(host, "its agent does not answer")

    def _look_at_launches(self) -> None:
        for start, last in self._launches.ended():
            for host in (self._hosts[number] for number in start.hosts):
                # One whose agent has called may still have things to say: its connection tells when it is gone.
                if not host.said and not host.over:
                    self._lost(host, last)

    # --- the end ---

    def _last_output(self) -> None:
        self._display.hide()
        end = time.monotonic() + LAST_OUTPUT
        while any(sink.waiting for sink in self._sinks) and not (self._stop_signal and time.monotonic() >= end):
            self._turn(end if self._stop_signal else None)

    def _conclude(self) -> int:
        if self._stop_signal:
            print(f"ddlrun: stopped by {signal.Signals(self._stop_signal).name}", file=sys.stderr)
            return 128 + self._stop_signal
        failed = first_failure(self._ends.exits, self._verdict)
        if self._problem and (failed is None or not self._running):
            print(f"ddlrun: {self._problem}", file=sys.stderr)
            self._tell_dumps(None)
            return 1
        if failed is None:
            return 0
        if self._problem:
            print(f"ddlrun: {self._problem}", file=sys.stderr)
        self._report(failed, self._verdict)
        return failed.status

    def _report(self, failed: Exit, verdict: Optional[Message]) -> None:
        print(self._ends.report(failed, verdict, self._sinks[1].last), file=sys.stderr)
        self._tell_dumps(failed)

    def _tell_dumps(self, failed: Optional[Exit]) -> None:
        dumps = self._dumps.take()
        if dumps:
            kept = self._keep_dumps(dumps, failed)
            kept.print()
            self._display.tell(kept.lines)

    def _say(self, text: str) -> None:
        if self._config.verbose:
            print(f"ddlrun: {text}", file=sys.stderr, flush=True)
