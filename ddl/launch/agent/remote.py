"""ddlrun's agent on one host of several: ``python -m ddl.launch.agent.remote``, started by a launcher (launchers/).

It reads its invitation, calls ddlrun, and does on its host what local_job.py does on one machine. Output, exits and
orders to stop go over the connection (control.py). If the connection is lost, the agent ends its ranks: nothing stays
behind, whatever happens to ddlrun, ssh or the network. (In an elastic job they go on: elastic_agent.py.)
"""

from __future__ import annotations

import contextlib
import os
import platform
import select
import socket
import sys
from typing import Any, Mapping, Optional, Sequence

from ddl._version import __version__
from ddl.errors import ConfigError, Error, ProtocolError, RendezvousError
from ddl.launch.agent.control import INVITATION, Assignment, Invitation
from ddl.launch.agent.elastic_agent import ElasticAgentCourse
from ddl.launch.agent.preflight import HostEntry, look_around, open_token_ports, prepare, sources
from ddl.launch.agent.rank_environ import keep_port
from ddl.launch.agent.reach import TokenPort
from ddl.launch.agent.remote_agent import FixedAgentCourse, RemoteHostAgent
from ddl.net.address import format_address
from ddl.net.encryption import can_encrypt, prepare_encryption
from ddl.store.watch import HostAgentClient

__all__ = ["attend", "call", "main"]

_PARTING_SECONDS = 1.0  # for ddlrun to read what was said last
#: Where launchers that start one process per host say which of them this is.
_HOST_NUMBERS = ("SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


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
    """Connect to ddlrun by one of its addresses, the first if possible."""
    prepare_encryption(invitation.encrypt, invitation.openssl)
    encrypt = invitation.encrypt or (invitation.can_encrypt and can_encrypt(invitation.openssl))
    (address, *others), secret, patience = invitation.addresses, invitation.secret, invitation.timeout
    try:
        return HostAgentClient(address, secret, host, patience, encrypt=encrypt, others=others)
    except RendezvousError as error:
        raise RendezvousError(f"ddlrun cannot be reached from this host (--start-timeout): {error}") from error


def main() -> int:
    """Be the agent of this host; return its exit status."""
    invitation = _invitation(os.environ)
    os.environ.pop(INVITATION, None)
    host = _host_number(invitation, os.environ)
    with call(invitation, host) as control:
        status = attend(control, invitation.secret)
        control.part(_PARTING_SECONDS)  # or a reset could take its last words along
        return status


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
            course = ElasticAgentCourse if assignment.elastic else FixedAgentCourse
            return RemoteHostAgent(assignment, control, secret, course).run((go["address"], go["port"]))
    except (Error, OSError) as error:
        control.send({"type": "problem", "text": str(error)})
        return 1


def _meet(control: HostAgentClient, host: int, port: int) -> Optional[Mapping[str, Any]]:
    """Open ports to the other hosts and look whether theirs can be reached; return the word that the job begins."""
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(opened) for opened in open_token_ports(control.local_host)]
        addresses = [format_address(opened.address, opened.port) for opened in ports]
        control.send({"type": "ready", "addresses": addresses, "token": ports[0].token.hex(), "port": port})
        while True:
            message = _next(control, "meet", "go", token_ports=ports)
            if message is None or message["type"] == "go":
                return message
            peers = [HostEntry(**entry) for entry in message["peers"]]
            control.send({"type": "met", **look_around(host, peers, ports)})


def _next(
    control: HostAgentClient, *expected: str, token_ports: Sequence[TokenPort] = ()
) -> Optional[Mapping[str, Any]]:
    """Wait for a message, and answer connections meanwhile; None if ddlrun gives up (a host had a problem) or ends."""
    while True:
        readable, _, _ = select.select([control.fileno(), *(port.fileno() for port in token_ports)], [], [])
        for port in token_ports:
            if port.fileno() in readable:
                port.greet()
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
