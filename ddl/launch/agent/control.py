"""What ddlrun and its agents on other hosts say to one another: JSON objects over an authenticated connection.

The invitation
    One JSON line that an agent is started with, through a channel that no stranger reads (ssh's standard input, or the
    environment that srun and mpiexec carry): ``secret``, ``addresses`` of ddlrun's store, ``host`` (its number; null
    where the launcher's own variables tell it), ``timeout`` in seconds; ``encrypt`` and ``openssl``: as DDL_ENCRYPT
    and DDL_OPENSSL; ``can_encrypt``: ddlrun can, so the agent does if it can, too.
From an agent
    ``hello`` (name, version, python); ``ready`` (addresses, token, port): it can start its ranks, has ports there, and
    keeps that port for rank 0; ``met`` (problems, warnings): what it found at the others' ports; ``problem`` text: it
    cannot start its ranks, or somebody else stops it; ``say`` text; ``out`` (stream 1 or 2, source, data: bytes as
    latin-1); ``exit`` (rank, pid, code, stopped, tail, source); ``record`` (pid, last, data): a piece of a rank's dump
    (dumps.py), and ``recorded`` after the last one of all its ranks; ``samples`` (ranks: what each does now);
    ``operations`` (news: of ranks, as records/follow.py makes them); ``clock`` (number, time, kernel): the answer to
    ``clock``; ``done``: all have ended, it leaves.
    If its connection is lost the store's server says ``gone`` (silent: seconds, why: if it has not just ended) in its
    place.
To an agent
    ``job`` (what ``Assignment`` holds), answered by ``ready``; ``meet`` (peers: number, name, addresses and token of
    each host), answered by ``met``; ``go`` (address, port: of rank 0's host): start the ranks; ``signal`` number: stop
    the ranks by it, and insist; ``records`` (now: at once, or before they are stopped): send dumps of the ranks;
    ``took`` (stream, bytes): so much of its output has been passed on; ``sample``: send ``samples`` each second;
    ``trace`` (wanted): send ``operations`` from now on, or no more, each time when ``traced`` has come for all that
    were sent before; ``clock`` number: say what the time is (clocks.py). An agent reads no more from its ranks while a
    megabyte is under way.
In an elastic job, besides
    To an agent: ``start`` (rank: the number of a process that comes later, slot, slots, hosts: as many as are known),
    ``end`` (rank, number: of a signal for that process), ``finish``: nothing more will be started. From an agent:
    ``started`` (rank, pid) or ``failed`` (rank, text). A host that comes later gets a ``job`` without ranks, and does
    not meet the others: ranks that cannot connect say so by themselves.
    A host that may return (a pod) says ``leaving`` text when it is asked to end: its ranks are to leave before. It is
    told ``renew`` when it has no rank and gets none: it ends as if it had failed, so that a new one takes its place.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ddl.bootstrap.environ import Identity
from ddl.errors import ProtocolError
from ddl.launch.ask.config import RunConfig
from ddl.launch.ask.elastic_options import ElasticOptions
from ddl.launch.ask.placement import Placement

__all__ = ["INVITATION", "Assignment", "Entrance", "Invitation", "assignment_of", "cut_off", "gone_since"]

#: Variables of ddlrun that ranks on other hosts get, too (others need --env).
_CARRIED = (
    *("DDL_", "HOROVOD_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "PYTHON", "CONDA_", "NCCL_", "UCX_"),
    *("TORCH_", "TF_", "KERAS_"),
)
_CARRIED_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ")

_CLOCK = "%H:%M:%S"

INVITATION = "DDL_INVITATION"  #: the variable that holds it where it does not come over standard input


@dataclass(frozen=True)
class Invitation:
    """How an agent finds ddlrun. It must ``encrypt``; else it does where it can, and ddlrun can (``can_encrypt``)."""

    secret: bytes = dataclasses.field(repr=False)
    addresses: Tuple[str, ...]
    host: Optional[int]
    timeout: float
    encrypt: bool
    can_encrypt: bool
    openssl: str

    def text(self) -> str:
        """Return the line that ``parse`` reads."""
        return json.dumps({**vars(self), "secret": self.secret.hex()})

    @staticmethod
    def parse(text: str) -> Invitation:
        """Read an invitation; ProtocolError, which does not show it, if it is none."""
        try:
            fields = json.loads(text)
            fields.update(secret=bytes.fromhex(fields["secret"]), addresses=tuple(fields["addresses"]))
            return Invitation(**fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ProtocolError("what came instead of an invitation by ddlrun makes no sense") from None


@dataclass(frozen=True)
class Entrance:
    """Where agents that nobody here starts find us, and what lets them in: agreed on beforehand (pods.py)."""

    port: int
    secret: bytes = dataclasses.field(repr=False)


@dataclass(frozen=True)
class Assignment:
    """What one host has to do: run ``ranks`` of ``size`` in all, as host ``host`` of ``hosts``."""

    ranks: Tuple[int, ...]
    size: int
    host: int
    hosts: int
    command: Tuple[str, ...]
    directory: str
    environ: Tuple[Tuple[str, str], ...]
    output_dir: Optional[str]
    prefix: bool
    verbose: bool
    interface: str  #: name or address of the network interface for data; empty: the one that leads to ddlrun
    timestamps: bool = False
    grace: Optional[float] = None  #: seconds that ranks have to end by themselves; None: see grace.py
    dump_dir: Optional[str] = None  #: keep dumps there if ddlrun is lost; None: where the user's are kept
    elastic: bool = False  #: processes come and go
    returning: bool = False  #: this host may be lost, and call again
    returns: int = 0  #: how often it has called again

    def message(self) -> Dict[str, Any]:
        """Return the message ``job``."""
        return {"type": "job", **dataclasses.asdict(self)}

    @staticmethod
    def parse(message: Mapping[str, Any]) -> Assignment:
        """Read the message ``job``; it comes from ddlrun of the same version."""
        fields = {entry.name: message[entry.name] for entry in dataclasses.fields(Assignment)}
        fields["ranks"], fields["command"] = tuple(fields["ranks"]), tuple(fields["command"])
        fields["environ"] = tuple((name, value) for name, value in fields["environ"])
        return Assignment(**fields)

    def identities(self, store: str, secret: bytes) -> List[Identity]:
        """Return who the ranks of this host are."""
        return [
            Identity(rank, self.size, local, len(self.ranks), self.host, self.hosts, store, secret)
            for local, rank in enumerate(self.ranks)
        ]

    def config(self) -> RunConfig:
        """Return what the agent's ranks are started by."""
        return RunConfig(
            num_proc=self.size,
            command=self.command,
            environ=self.environ,
            output_dir=self.output_dir,
            prefix=self.prefix,
            verbose=self.verbose,
            timestamps=self.timestamps,
            grace=self.grace,
            dump_dir=self.dump_dir,
            elastic=ElasticOptions(min_np=1, max_np=None) if self.elastic else None,  # ddlrun sees to its numbers
        )


def gone_since(silent: float, why: str = "") -> str:
    """Return what ddlrun says of a host whose agent it has lost, after ``silent`` seconds without a sign of it."""
    since = time.strftime(_CLOCK, time.localtime(time.time() - silent))
    return (
        f"the connection to its agent is gone since {since} ({why or 'host or network down, or it was killed'}); what "
        "is cut off there ends by itself"
    )


def cut_off(host: str, ddlrun: str, silent: float, ranks: str, why: str = "") -> str:
    """Return the last words of the agent on ``host``, which has heard nothing of ``ddlrun`` for ``silent`` seconds."""
    since = time.strftime(_CLOCK, time.localtime(time.time() - silent))
    why = why or "its host or the network is down, or ddlrun was killed"
    return (
        f"ddlrun's agent on {host}: the connection to ddlrun at {ddlrun} is lost since {since} ({why}); so {ranks} "
        "here cannot go on: ended"
    )


def assignment_of(config: RunConfig, placement: Placement, host: int, returns: int = 0) -> Assignment:
    """Return what host number ``host`` has to do, in ddlrun's own directory unless ``config`` names one.

    A host that has come later, or that has called again (``returns`` times), has no ranks yet.
    """
    carried = {name: value for name, value in os.environ.items() if name.startswith(_CARRIED) or name in _CARRIED_NAMES}
    named = host < len(placement.hosts)
    here = placement.ranks[host] if named and not returns else ()
    return Assignment(
        ranks=here,
        size=placement.size,
        host=host,
        hosts=max(len(placement.hosts), host + 1),
        command=config.command,
        directory=os.getcwd() if config.directory is None else config.directory,
        environ=tuple({**carried, **dict(config.environ)}.items()),
        output_dir=None if config.output_dir is None else os.path.abspath(config.output_dir),
        prefix=config.prefix,
        verbose=config.verbose,
        interface=config.interface,
        timestamps=config.timestamps,
        grace=config.grace,
        dump_dir=None if config.dump_dir is None else os.path.abspath(config.dump_dir),
        elastic=config.elastic is not None,
        returning=config.elastic is not None and named and placement.hosts[host] in config.elastic.returning,
        returns=returns,
    )
