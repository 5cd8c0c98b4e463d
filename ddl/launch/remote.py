"""ddlrun's agent on one host of several: ``python -m ddl.launch.remote``, started by a launcher (launchers/).

It reads its invitation, calls ddlrun, and does on its host what local_job.py does on one machine. Output, exits and
orders to stop go over the connection (control.py). If the connection is lost, the agent ends its ranks: nothing stays
behind, whatever happens to ddlrun, ssh or the network.
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddl._version import __version__
from ddl.bootstrap.environ import Identity
from ddl.errors import ConfigError, Error, PeerLost, ProtocolError, RendezvousError
from ddl.launch.control import INVITATION, Assignment, Invitation, cut_off
from ddl.launch.host_agent import KILL_GRACE, HostAgent, Worker
from ddl.launch.loop import Handlers
from ddl.launch.preflight import HostEntry, look_around, open_door, prepare, sources
from ddl.launch.rank_environ import keep_port
from ddl.launch.reach import TokenPort
from ddl.store.address import format_address
from ddl.store.verdict import name_ranks
from ddl.store.watch import HostAgentClient

__all__ = ["attend", "call", "main"]

_FRAME = 128 << 10  # bytes of output in one message; JSON may take six times as much
#: Where launchers that start one process per host say which of them this is.
_HOST_NUMBERS = ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class _SinkToDdlrun:
    """Where the output of this host's ranks goes: to ddlrun, and on from there. An output.Outlet."""

    waiting = False  # nothing to write here: what is on its way has been sent

    def __init__(self, stream: int, control: HostAgentClient) -> None:
        self.fd = -1
        self.backlog = 0  # bytes that ddlrun has not passed on yet
        self._stream = stream
        self._control: Optional[HostAgentClient] = control
        self._sources: Dict[int, int] = {}

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
        return self._sources.setdefault(id(source), len(self._sources))

    def write_some(self) -> bool:
        return True

    def close(self) -> None:
        """ddlrun is gone, and nobody wants output any more."""
        self._control = None
        self.backlog = 0


class _RemoteHostAgent(HostAgent):
    def __init__(self, assignment: Assignment, control: HostAgentClient, secret: bytes) -> None:
        self._to_ddlrun = (_SinkToDdlrun(1, control), _SinkToDdlrun(2, control))
        super().__init__(assignment.config(), self._to_ddlrun)
        self._assignment = assignment
        self._control = control
        self._secret = secret
        self._lost = False

    def run(self, meeting_point: Tuple[str, int]) -> int:
        self.run_ranks(self._begin, meeting_point)
        self._send_up({"type": "done"})
        return 1 if self._lost else 0

    def _begin(self) -> List[Identity]:
        return self._assignment.identities(self._control.address, self._secret)

    def say(self, text: str) -> None:
        if self._assignment.verbose:
            self._send_up({"type": "say", "text": text})

    def ended(self, worker: Worker) -> None:
        for stream in worker.streams:  # the last words come before the end
            while select.select([stream], [], [], 0)[0] and stream.pump():
                pass
        entry = worker.exit
        assert entry is not None
        fields = {"rank": entry.rank, "pid": entry.pid, "code": entry.code, "stopped": entry.stopped}
        source = self._to_ddlrun[1].number_of(worker.streams[1])
        self._send_up({"type": "exit", **fields, "tail": worker.streams[1].tail, "source": source})

    def others(self) -> Handlers:
        return {} if self._lost else {self._control.fileno(): (select.POLLIN, self._hear)}

    def _hear(self) -> None:
        while True:
            message = self._control.receive()
            if message is None:
                return self._lose()
            if not message:
                return
            if message["type"] == "signal":
                super().stop(message["number"])
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
        if running and not self._stopping and not self._stop_signal:
            self._last_words(running)
        for sink in self._to_ddlrun:
            sink.close()
        now = time.monotonic()
        self._signals_due = [(now, signal.SIGTERM), (now + KILL_GRACE, signal.SIGKILL)]

    def _last_words(self, running: List[Worker]) -> None:
        """Say why the ranks are ended: where ssh or srun may still carry it, and in the files of their output."""
        ranks = name_ranks(sorted(worker.rank for worker in running))
        message = cut_off(socket.gethostname(), self._control.address, self._control.silent(), ranks)
        with contextlib.suppress(OSError):  # nobody may be there to read it
            print(message, file=sys.stderr, flush=True)
        for worker in running:
            with contextlib.suppress(OSError):
                worker.streams[1].add(message.encode() + b"\n")


def _invitation(environ: Mapping[str, str]) -> Invitation:
    text = environ.get(INVITATION)
    if text is None:
        text = sys.stdin.readline()
    return Invitation.parse(text)


def _host_number(invitation: Invitation, environ: Mapping[str, str]) -> int:
    if invitation.host is not None:
        return invitation.host
    for name in _HOST_NUMBERS:
        if environ.get(name, "").isdigit():
            return int(environ[name])
    raise ConfigError(f"the launcher does not say which host this is: none of {', '.join(_HOST_NUMBERS)} is set")


def call(invitation: Invitation, host: int) -> HostAgentClient:
    """Connect to ddlrun by the first of its addresses at which it answers."""
    deadline = time.monotonic() + invitation.timeout
    problems: List[str] = []
    while True:
        for address in invitation.addresses:
            remaining = deadline - time.monotonic()
            share = max(1.0, remaining / len(invitation.addresses))
            try:
                return HostAgentClient(
                    address, invitation.secret, host, min(remaining, share) if remaining > 0 else 0.1
                )
            except RendezvousError as error:
                problems.append(str(error))
        if time.monotonic() >= deadline:
            raise RendezvousError(f"ddlrun cannot be reached from this host: {'; '.join(dict.fromkeys(problems))}")


def main() -> int:
    """Be the agent of this host; return its exit status."""
    invitation = _invitation(os.environ)
    os.environ.pop(INVITATION, None)
    host = _host_number(invitation, os.environ)
    with call(invitation, host) as control:
        return attend(control, invitation.secret)


def attend(control: HostAgentClient, secret: bytes) -> int:
    """Say hello, take this host's part of the job, see whether it can be done, and do it; return the exit status."""
    python = platform.python_version()
    control.send({"type": "hello", "name": socket.gethostname(), "version": __version__, "python": python})
    try:
        message = _next(control, "job")
        if message is None:
            return 1
        assignment = Assignment.parse(message)
        prepare(assignment)
        control.also_over(sources(control.local_host))
        with keep_port() as port:  # in case rank 0 is here
            go = _meet(control, assignment.host, port)
            if go is None:
                return 1
            return _RemoteHostAgent(assignment, control, secret).run((go["address"], go["port"]))
    except (Error, OSError) as error:
        control.send({"type": "problem", "text": str(error)})
        return 1


def _meet(control: HostAgentClient, host: int, port: int) -> Optional[Mapping[str, Any]]:
    """Open a door to the other hosts and look whether theirs can be reached; return the word that the job begins."""
    with open_door(control.local_host) as door:
        address = format_address(door.address, door.port)
        control.send({"type": "ready", "address": address, "token": door.token.hex(), "port": port})
        while True:
            message = _next(control, "meet", "go", door=door)
            if message is None or message["type"] == "go":
                return message
            peers = [HostEntry(**entry) for entry in message["peers"]]
            control.send({"type": "met", **look_around(host, peers, door)})


def _next(control: HostAgentClient, *expected: str, door: Optional[TokenPort] = None) -> Optional[Mapping[str, Any]]:
    """Wait for a message, and answer connections meanwhile; None if ddlrun gives up (a host had a problem) or ends."""
    while True:
        waited = [control.fileno()] if door is None else [control.fileno(), door.fileno()]
        readable, _, _ = select.select(waited, [], [])
        if door is not None and door.fileno() in readable:
            door.greet()
        if control.fileno() not in readable:
            continue
        message = control.receive()
        if message is None or message.get("type") == "signal":
            return None
        if message:
            if message["type"] in expected:
                return message
            raise ProtocolError(f"ddlrun said {message['type']!r}, not {' or '.join(expected)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Error, OSError) as error:
        print(f"ddlrun's agent on {socket.gethostname()}: {error}", file=sys.stderr)
        sys.exit(1)
