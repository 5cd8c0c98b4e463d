"""A job on several hosts, as ddlrun sees it: agents are started, checked, given their ranks, listened to and ended.

One thread, one loop, as in agent.py; the store's server, over which the agents speak (control.py), has a thread of its
own and wakes the loop. Nothing starts before every host's agent has called and proved fit. The job ends as a job on one
machine does; besides, a host whose agent is gone before its ranks have ended is a failure like that of a rank.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import platform
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ddl._version import __version__
from ddl.bootstrap.address import format_address, parse_address
from ddl.bootstrap.environ import Settings
from ddl.bootstrap.interfaces import addresses, source_towards
from ddl.bootstrap.store import StoreServer
from ddl.bootstrap.verdict import Message, name_ranks
from ddl.errors import ConfigError
from ddl.run.agent import GRACE, LAST_OUTPUT, OWN_WORDS, catch_signals
from ddl.run.config import RunConfig
from ddl.run.control import INVITATION, Assignment, Invitation
from ddl.run.failures import Exit, first_failure, report
from ddl.run.launchers import Start
from ddl.run.output import BACKLOG_LIMIT, Sink, Stream
from ddl.run.placement import Placement
from ddl.run.processes import Guard, signal_group

__all__ = ["ClusterJob", "Entrance"]

#: Of ddlrun's environment, what its ranks elsewhere get too (the rest with --env): it is sent as it is, unencrypted.
_CARRIED = ("DDL_", "HOROVOD_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "PYTHON", "CONDA_", "NCCL_", "UCX_", "TORCH_")
_CARRIED_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True)
class Entrance:
    """Where agents that nobody here starts find us, and what lets them in: agreed on beforehand (pods.py)."""

    port: int
    secret: bytes = field(repr=False)


@dataclass
class _Host:
    """One host, its agent, and what came from it."""

    number: int
    name: str
    ranks: Tuple[int, ...]
    said: Optional[Message] = None  # its hello
    done: bool = False
    gone: str = ""  # why it cannot say any more how its ranks ended
    unasked: Dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0})  # bytes to be confirmed, by stream
    tails: Dict[int, List[str]] = field(default_factory=dict)  # the last lines on stderr, by rank

    @property
    def over(self) -> bool:
        return self.done or bool(self.gone)

    @property
    def label(self) -> str:
        return f"host {self.name} ({name_ranks(self.ranks)})"


@dataclass
class _Launcher:
    """A process that starts agents, and what it says itself."""

    start: Start
    process: subprocess.Popen[bytes]
    streams: Tuple[Stream, ...]
    status: Optional[int] = None

    @property
    def tail(self) -> List[str]:
        return [line for stream in self.streams for line in stream.tail]


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
        self._hosts = [_Host(number, name, placement.ranks[number]) for number, name in enumerate(placement.hosts)]
        self._launchers: List[_Launcher] = []
        self._reading: List[Stream] = []
        self._sinks = sinks if sinks is not None else (Sink(1), Sink(2))
        self._news: Deque[Tuple[int, Optional[Message]]] = collections.deque()  # from the server's thread
        self._exits: List[Exit] = []
        self._ended: Set[int] = set()  # ranks
        self._looks = 0
        self._running = False
        self._problem = ""  # why the job never began, or what failed that is no rank
        self._stop_signal = 0
        self._plan: List[Tuple[float, int]] = []
        self._stopping = False

    @property
    def problems(self) -> Dict[int, str]:
        """Why hosts, by number, could not take part, or not until the end."""
        return {host.number: host.gone for host in self._hosts if host.gone}

    def run(self) -> int:
        """Run the job; return ddlrun's exit status."""
        guard = Guard()
        self._woken, restore = catch_signals()
        self._news_reader, self._news_writer = socket.socketpair()
        self._news_reader.setblocking(False)
        secret = secrets.token_bytes(32) if self._entrance is None else self._entrance.secret
        try:
            with self._serve(secret) as server:
                self._server = server
                self._launch(secret, guard)
                server.start()
                self._gather()
                self._supervise()
                self._last_output()
        finally:
            self._end_launchers()
            guard.dismiss()
            restore()
            self._news_reader.close()
            self._news_writer.close()
        return self._conclude(server)

    # --- the beginning ---

    def _serve(self, secret: bytes) -> StoreServer:
        port = 0 if self._entrance is None else self._entrance.port
        agents = len(self._hosts)
        return StoreServer(
            secret, self._placement.size, "0.0.0.0", port, start=False, agents=agents, from_agent=self._from_agent
        )

    def _from_agent(self, host: int, message: Optional[Message]) -> None:
        """Called in the server's thread."""
        self._news.append((host, message))
        with contextlib.suppress(OSError):  # full: the loop will wake anyhow; closed: nobody wants to know any more
            self._news_writer.send(b"x", socket.MSG_DONTWAIT)

    def _launch(self, secret: bytes, guard: Guard) -> None:
        _, port = parse_address(self._server.address)
        patience = self._start_timeout
        for start in self._starts:
            known = self._known_addresses(start.hosts)
            invitation = Invitation(
                secret, tuple(format_address(address, port) for address in known), start.host, patience
            ).text()
            environ = {**os.environ, **start.environ}
            if not start.stdin:
                environ[INVITATION] = invitation
            try:
                process = subprocess.Popen(
                    start.command,
                    env=environ,
                    stdin=subprocess.PIPE if start.stdin else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd="/",  # python -m would import from the directory it stands in; agents go to ours by themselves
                    start_new_session=True,
                    bufsize=0,
                )
            except OSError as error:
                raise ConfigError(f"{start.command[0]} cannot be started: {error}") from error
            guard.add(process.pid)
            streams = tuple(
                Stream(pipe, self._sinks[1], f"[{start.label}] ".encode())
                for pipe in (process.stdout, process.stderr)
                if pipe is not None
            )
            self._reading += streams
            self._launchers.append(_Launcher(start, process, streams))
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it has ended at once; its status will tell
                    process.stdin.write(invitation.encode() + b"\n")
            self._say(f"{start.label}: {' '.join(start.command)}")

    def _known_addresses(self, hosts: Sequence[int]) -> List[str]:
        """Return the addresses at which agents of ``hosts`` find us, the likely one first; loopback never leads."""
        names = [self._hosts[host].name for host in hosts]
        # With an entrance, the others know where we are, and their names may not be known yet.
        others = [host.name for host in self._hosts] if self._entrance is None else []
        found = [source_towards(name.rpartition("@")[2].strip("[]")) for name in (*names, *others)]
        found += addresses().values()
        real = [address for address in found if address is not None and not address.startswith("127.")]
        return list(dict.fromkeys(real)) or ["127.0.0.1"]

    @property
    def _start_timeout(self) -> float:
        return Settings.from_environ({**os.environ, **dict(self._config.environ)}).start_timeout

    def _gather(self) -> None:
        """Wait until every agent has called, or until one cannot; if patient, also for the others."""
        deadline = time.monotonic() + self._start_timeout
        while not self._stop_signal and (self._patient or not self._problem):
            missing = [host for host in self._hosts if host.said is None and not host.over]
            if not missing:
                break
            if time.monotonic() >= deadline:
                problem = (
                    f"no agent has called from {', '.join(host.name for host in missing)} within "
                    f"{self._start_timeout:g} s (--start-timeout); can those hosts reach this one, or does a firewall "
                    "keep them from it?"
                )
                for host in missing:
                    self._unfit(host, problem)
                break
            self._turn(deadline)
        for host in self._hosts:
            if host.said is not None and not host.over:
                self._check(host, host.said)
        if self._problem or self._stop_signal:
            self._signal(signal.SIGTERM)
            return
        for host in self._hosts:
            self._server.post(host.number, self._assignment(host).message())
        self._running = True

    def _check(self, host: _Host, said: Message) -> None:
        """Find out in which way a host does not fit, if it does not."""
        python = ".".join(platform.python_version_tuple()[:2])
        if said["version"] != __version__:
            self._unfit(
                host, f"host {host.name} has DDL {said['version']}, this one {__version__}; install the same one"
            )
        elif ".".join(said["python"].split(".")[:2]) != python:
            self._unfit(host, f"host {host.name} has Python {said['python']}, this one {python}; use the same one")

    def _unfit(self, host: _Host, reason: str) -> None:
        host.gone = reason
        self._problem = self._problem or reason

    def _assignment(self, host: _Host) -> Assignment:
        config = self._config
        carried = {
            name: value for name, value in os.environ.items() if name.startswith(_CARRIED) or name in _CARRIED_NAMES
        }
        return Assignment(
            ranks=host.ranks,
            size=self._placement.size,
            host=host.number,
            hosts=len(self._hosts),
            command=config.command,
            directory=os.getcwd() if config.directory is None else config.directory,
            environ=tuple({**carried, **dict(config.environ)}.items()),
            output_dir=None if config.output_dir is None else os.path.abspath(config.output_dir),
            prefix=config.prefix,
            verbose=config.verbose,
            interface=config.interface,
        )

    # --- the loop ---

    def _supervise(self) -> None:
        while self._running and not all(host.over for host in self._hosts):
            self._turn(self._plan[0][0] if self._plan else None)

    def _turn(self, until: Optional[float]) -> None:
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        poller.register(self._news_reader, select.POLLIN)
        readers = {stream.fileno(): stream for stream in self._reading}
        writers = {sink.fd: sink for sink in self._sinks if sink.waiting}
        for fd in readers:
            poller.register(fd, select.POLLIN)
        for fd in writers:
            poller.register(fd, select.POLLOUT)
        wait = None if until is None else max(0, math.ceil((until - time.monotonic()) * 1000))
        for fd, _ in poller.poll(wait):
            if fd in readers and not readers[fd].pump():
                self._reading.remove(readers[fd])
            elif fd in writers and not writers[fd].write_some():
                self._told(signal.SIGPIPE)  # nobody reads our output any more
        for number in _drain(self._woken):
            if number == signal.SIGCHLD:
                self._look_at_launchers()
            else:
                self._told(number)
        _drain(self._news_reader)
        while self._news:
            host, message = self._news.popleft()
            self._heard(self._hosts[host], message)
        self._confirm()
        while self._plan and self._plan[0][0] <= time.monotonic():
            self._signal(self._plan.pop(0)[1])

    def _heard(self, host: _Host, message: Optional[Message]) -> None:
        if message is None:
            if not host.over:
                self._lost(host, "the connection to its agent is gone (host or network down, or it was killed)")
            return
        kind = message["type"]
        if kind == "hello":
            host.said = message
            self._say(f"host {host.name} is {message['name']}, Python {message['python']}")
        elif kind == "out":
            data = message["data"].encode("latin-1")
            self._sinks[message["stream"] - 1].put(data, (host.number, message["source"]))
            host.unasked[message["stream"]] += len(data)
        elif kind == "say":
            self._say(f"host {host.name}: {message['text']}")
        elif kind == "exit":
            self._exited(host, message)
        elif kind == "problem":
            self._lost(host, message["text"])
        elif kind == "done":
            host.done = True

    def _exited(self, host: _Host, message: Mapping[str, object]) -> None:
        self._looks += 1
        rank, pid, code = (int(str(message[name])) for name in ("rank", "pid", "code"))
        entry = Exit(rank, pid, code, self._looks, bool(message["stopped"]) or self._stopping, host.name)
        self._exits.append(entry)
        tail = message["tail"]
        assert isinstance(tail, list)
        host.tails[rank] = tail
        if entry.failed:
            self._stop_soon()

    def _lost(self, host: _Host, reason: str) -> None:
        host.gone = reason
        if not self._problem:
            self._problem = f"{host.label}: {reason}"
        if self._running:
            self._stop_soon()

    def _stop_soon(self) -> None:
        """Something failed: the others get a moment to fail by themselves, and say so."""
        if not self._plan and not self._stopping:
            now = time.monotonic()
            self._plan = [(now + OWN_WORDS, signal.SIGTERM), (now + OWN_WORDS + GRACE, signal.SIGKILL)]
            self._plan.append((now + OWN_WORDS + 4 * GRACE, 0))

    def _confirm(self) -> None:
        """Tell agents what has been passed on, unless nobody takes it from us fast enough."""
        for host in self._hosts:
            for stream, sink in enumerate(self._sinks, 1):
                if host.unasked[stream] and sink.backlog < BACKLOG_LIMIT:
                    self._server.post(host.number, {"type": "took", "stream": stream, "bytes": host.unasked[stream]})
                    host.unasked[stream] = 0

    def _told(self, number: int) -> None:
        """Somebody wants ddlrun to stop. Told twice, stop at once."""
        now = time.monotonic()
        first = signal.SIGTERM if number == signal.SIGPIPE else number
        if self._stop_signal:
            self._plan = [(now, signal.SIGKILL), (now + 2 * GRACE, 0)]
        else:
            self._stop_signal = number
            end = now + OWN_WORDS
            self._plan = [(now, first), (end, signal.SIGTERM), (end + GRACE, signal.SIGKILL), (end + 4 * GRACE, 0)]

    def _signal(self, number: int) -> None:
        """Let every agent stop its ranks by a signal; 0: give up on agents that are still there."""
        self._stopping = True
        for host in self._hosts:
            if number:
                self._server.post(host.number, {"type": "signal", "number": int(number)})
            elif not host.over:
                self._lost(host, "its agent does not answer")

    def _look_at_launchers(self) -> None:
        for launcher in self._launchers:
            if launcher.status is not None:
                continue
            launcher.status = launcher.process.poll()
            if launcher.status is None:
                continue
            for host in (self._hosts[number] for number in launcher.start.hosts):
                # One whose agent has called may still have things to say: its connection tells when it is gone.
                if host.said is None and not host.over:
                    program = os.path.basename(launcher.start.command[0])
                    self._read_out(launcher)
                    last = "; ".join(launcher.tail[-3:]) or "it said nothing"
                    self._lost(host, f"{program} ended with status {launcher.status} before it had an agent: {last}")

    def _read_out(self, launcher: _Launcher) -> None:
        for stream in launcher.streams:
            while stream in self._reading and select.select([stream], [], [], 0)[0]:
                if not stream.pump():
                    self._reading.remove(stream)

    # --- the end ---

    def _last_output(self) -> None:
        end = time.monotonic() + LAST_OUTPUT
        while any(sink.waiting for sink in self._sinks) and not (self._stop_signal and time.monotonic() >= end):
            self._turn(end if self._stop_signal else None)

    def _end_launchers(self) -> None:
        """Their agents have ended, or cannot be reached: give them a moment, then end them."""
        deadline = time.monotonic() + GRACE
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            for launcher in self._launchers:
                if launcher.process.poll() is None and number:
                    signal_group(launcher.process.pid, number)
            while time.monotonic() < deadline and any(entry.process.poll() is None for entry in self._launchers):
                time.sleep(0.01)
            deadline = time.monotonic() + GRACE
        for launcher in self._launchers:
            launcher.process.wait()
            self._read_out(launcher)  # an agent's last words, say
            for stream in launcher.streams:
                stream.close()
            if launcher.process.stdin is not None:
                launcher.process.stdin.close()
        for sink in self._sinks:
            while sink.waiting and sink.write_some():
                pass

    def _conclude(self, server: StoreServer) -> int:
        if self._stop_signal:
            print(f"ddlrun: stopped by {signal.Signals(self._stop_signal).name}", file=sys.stderr)
            return 128 + self._stop_signal
        failed = first_failure(self._exits, server.first_failure)
        if self._problem and (failed is None or not self._running):
            print(f"ddlrun: {self._problem}", file=sys.stderr)
            return 1
        if failed is None:
            return 0
        if self._problem:
            print(f"ddlrun: {self._problem}", file=sys.stderr)
        tail = self._hosts[self._placement.host_of(failed.rank)].tails.get(failed.rank, [])
        print(report(failed, server.first_failure, tail), file=sys.stderr)
        return failed.status

    def _say(self, text: str) -> None:
        if self._config.verbose:
            print(f"ddlrun: {text}", file=sys.stderr, flush=True)


def _drain(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except BlockingIOError:
        return b""
