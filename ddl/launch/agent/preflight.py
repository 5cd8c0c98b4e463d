"""What an agent checks on its host before any rank of the job starts.

First by itself: directory, program, script and network interface exist (``prepare``). Then ddlrun tells every host at
which ports the others listen: each host must be able to connect to each other one over the networks that data will use,
and names must lead to the right hosts (``look_around``). The results go to ddlrun (control.py), which ends the job or
starts the ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Sequence

from ddl.errors import ConfigError
from ddl.launch.agent.control import Assignment
from ddl.launch.agent.reach import Target, TokenPort, connect_all
from ddl.launch.ask.hosts import bare_name
from ddl.launch.ask.program import script_of
from ddl.net.address import family_of, format_address, is_loopback, parse_address
from ddl.net.interfaces import address_of
from ddl.net.rails import common_family, places

__all__ = ["HostEntry", "look_around", "open_token_ports", "prepare", "sources", "wrong_names"]

#: What launchers tell the processes that they start: true of the agent, not of its ranks.
_LAUNCHERS_OWN = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "PRRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "SLURM_STEP_")
_LAUNCHERS_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASK_PID")
_NAME_SECONDS = 1.0
_SAID = {
    "timeout": "no answer",
    "refused": "refused",
    "forbidden": "forbidden by this host's own firewall",
    "no route": "there is no route",
    "unreachable": "the host is unreachable",
}
# In a process of its own: some name services answer only after many seconds, and agents have no threads as they fork.
_RESOLVE = """
import json, socket, sys
for name in sys.argv[1:]:
    try:
        addresses = sorted({entry[4][0] for entry in socket.getaddrinfo(name, None)})
    except OSError:
        addresses = []
    print(json.dumps([name, addresses]), flush=True)
"""


def prepare(assignment: Assignment) -> None:
    """Take over directory and environment of the job; Error says what is missing on this host."""
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS_OWN) or name in _LAUNCHERS_NAMES:
            del os.environ[name]
    os.environ.update(assignment.environ)
    try:
        os.chdir(assignment.directory)
    except OSError as error:
        raise ConfigError(
            f"the directory {assignment.directory} cannot be entered: {error.strerror}; the job runs in the directory "
            "in which ddlrun was started, so make it available on every host"
        ) from error
    program = assignment.command[0]
    if not os.access(program, os.X_OK):
        raise ConfigError(f"the program {program} is not here, or cannot be executed; install it on every host")
    script = script_of(assignment.command)
    if script and not os.path.isfile(script):
        raise ConfigError(f"the script {script} is not in {assignment.directory}; make it available on every host")
    # Two hosts never share memory; names may lie (containers, copies of one disk), ddlrun's numbers do not. A new pod
    # has the number of the one that was lost.
    again = f".{assignment.returns}" if assignment.returns else ""
    os.environ.setdefault("DDL_HOST_ID", f"{socket.gethostname()}#{assignment.host}{again}")
    if assignment.interface:
        names = [name.strip() for name in assignment.interface.split(",")]
        os.environ["DDL_INTERFACE"] = ",".join(map(address_of, names))


def sources(towards_ddlrun: str) -> List[str]:
    """Return the addresses of this host on all networks that data may use, of the version of IP that leads to ddlrun.

    Those of ``DDL_INTERFACE`` are taken as they are.
    """
    wanted = os.environ.get("DDL_INTERFACE", "")
    usable = [place for place in places(wanted, towards_ddlrun) if wanted or place.family == family_of(towards_ddlrun)]
    return [place.address for place in (usable[:1] if os.environ.get("DDL_RAILS") == "1" else usable)]


def open_token_ports(towards_ddlrun: str) -> List[TokenPort]:
    """Return ports at the addresses where this host's ranks may take data, with one token.

    The first one is at DDL_INTERFACE, or on the way to ddlrun. Without DDL_INTERFACE there may be one more, of the
    other version of IP.
    """
    wanted = os.environ.get("DDL_INTERFACE", "")
    first, *others = (place.address for place in places(wanted, towards_ddlrun))
    try:
        ports = [TokenPort(first)]
    except OSError as error:
        raise ConfigError(
            f"data cannot be awaited on {first}: {os.strerror(error.errno or 0)}; name a network that this host is on: "
            "--network-interface 10.1.0.0/16"
        ) from error
    other = next((address for address in others if not wanted and family_of(address) != family_of(first)), None)
    if other is not None:
        with contextlib.suppress(OSError):
            ports.append(TokenPort(other, ports[0].token))
    return ports


@dataclass(frozen=True)
class HostEntry:
    """One host as the others shall find it: an entry of ddlrun's message ``meet``."""

    number: int
    name: str  #: as it was given to ddlrun
    addresses: Sequence[str]  #: of its token ports, the best first
    token: str  #: in hexadecimal digits

    @property
    def ips(self) -> List[str]:
        """The addresses without the ports."""
        return [parse_address(address)[0] for address in self.addresses]

    def target(self, family: socket.AddressFamily) -> Target:
        """Return where to connect to, over this version of IP if possible."""
        at = next((at for at, ip in enumerate(self.ips) if family_of(ip) == family), 0)
        return Target(self.number, *parse_address(self.addresses[at]), bytes.fromhex(self.token))


def look_around(own: int, peers: Sequence[HostEntry], token_ports: Sequence[TokenPort]) -> Dict[str, List[str]]:
    """Return the ``problems`` and ``warnings`` of host ``own`` with the others, a text each."""
    here = next(peer for peer in peers if peer.number == own)
    others = [peer for peer in peers if peer is not here]
    resolver = _ask_for_names([bare_name(peer.name) for peer in peers])
    family = common_family([peer.ips for peer in peers])  # as that of the ranks' data
    attempts = connect_all([peer.target(family) for peer in others], token_ports)
    problems = []
    for peer in others:
        target = peer.target(family)
        attempt = attempts[target]
        if attempt.problem or attempt.stranger:
            what = _SAID.get(attempt.problem, attempt.problem) or "somebody else answers there"
            where = format_address(target.address, target.port)
            problems.append(f"{here.name} cannot connect to {peer.name} at {where}: {what}")
    return {"problems": problems, "warnings": list(wrong_names(here, peers, _answers(resolver)))}


def wrong_names(
    here: HostEntry, peers: Sequence[HostEntry], addresses_of: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield a warning for each host whose name, by ``addresses_of`` on host ``here``, leads to another one.

    DDL itself knows addresses. What else runs in the job (MASTER_ADDR, another library) may trust names.
    """
    owners = {ip: peer.name for peer in peers for ip in peer.ips}
    for peer in peers:
        addresses = addresses_of.get(bare_name(peer.name))
        if addresses is None:
            yield f"{here.name} got no answer within {_NAME_SECONDS:g} s when it asked for the address of {peer.name}"
            return
        leads = [owners.get(address, "") for address in addresses]
        if peer is not here and addresses and all(map(is_loopback, addresses)):
            leads = [here.name]
        wrong = sorted({name for name in leads if name})
        if wrong and peer.name not in wrong:
            there = f"{', '.join(addresses)}, which is {' and '.join(wrong)}"
            yield f"on {here.name}, the name {peer.name} leads to {there}; correct DNS or /etc/hosts"


def _ask_for_names(names: Sequence[str]) -> subprocess.Popen[str]:
    line = [sys.executable, "-S", "-c", _RESOLVE, *dict.fromkeys(names)]
    return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)


def _answers(resolver: subprocess.Popen[str]) -> Dict[str, List[str]]:
    """Return the addresses of the names for which there was an answer in time: none for a name that nobody knows."""
    try:
        said, _ = resolver.communicate(timeout=_NAME_SECONDS)
    except subprocess.TimeoutExpired:
        resolver.kill()
        said, _ = resolver.communicate()
    return dict(json.loads(line) for line in said.splitlines())
