"""Ranks that somebody else has started find one another: rank 0, or a program that outlives all ranks, has the store.

Whoever has started them can give a text to all: an engine by its broadcast, a launcher by a file. The text is an
``JobInvitation``: where the job's store is, and the secret. All else goes through that store.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import weakref
from dataclasses import dataclass, replace
from typing import Callable, List, Optional, Sequence, Tuple, Union

from ddl.bootstrap.environ import Identity, Settings
from ddl.errors import InvalidArgument, RendezvousError
from ddl.machine import host_id
from ddl.net.address import EVERYWHERE, format_address, is_loopback, parse_address
from ddl.net.auth import check_secret
from ddl.net.connecting import first_to_answer
from ddl.net.encryption import prepare_encryption
from ddl.net.interfaces import addresses
from ddl.net.shortage import threads_for
from ddl.store.membership.limits import ElasticLimits
from ddl.store.server import StoreServer
from ddl.store.store import StoreClient

__all__ = ["JobInvitation", "Launched", "Rendezvous", "Share", "located", "meet", "places", "serve"]

_ANSWERS = 5.0  # seconds for one of the store's addresses to answer
_MOST_ADDRESSES = 8  # PMI's values are short

Share = Callable[[Optional[str]], str]  #: rank 0 passes its text, the others None; all get rank 0's


@dataclass(frozen=True)
class Launched:
    """Who the launcher says that this process is. ``job`` tells jobs apart.

    Where it does not say, ``local_size`` is 0 (how many ranks are on this host), and so is ``hosts``.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    host: int
    hosts: int
    job: str


@dataclass(frozen=True)
class Rendezvous:
    """How this process finds the other ranks of a job that an engine has started: ``ddl.init(rendezvous=...)``.

    ``rank``, ``size``: what the engine calls this process, and how many there are. ``share``: the engine's broadcast of
    a text. It is called once on each rank, and may block: rank 0 passes a text, the others None, and all get rank 0's
    text. Or it is a text, the invitation of a ``ddl.JobStore``. ``hosts[r]``: the name of rank r's host, if the engine
    tells; else ranks find out which of them share a host. ``engine``: its name, for messages. Raises
    ``InvalidArgument`` for numbers that make no sense.

    >>> ddl.init(rendezvous=ddl.Rendezvous(rank, size, lambda text: comm.bcast(text, root=0)))
    """

    rank: int
    size: int
    share: Union[Share, str]
    hosts: Sequence[str] = ()
    engine: str = "the engine"

    def __post_init__(self) -> None:
        if type(self.rank) is not int or type(self.size) is not int or not 0 <= self.rank < self.size:
            raise InvalidArgument(f"Rendezvous: {self.engine} says that this is rank {self.rank!r} of {self.size!r}")
        if not callable(self.share) and not isinstance(self.share, str):
            raise InvalidArgument(
                f"Rendezvous: share={self.share!r:.100}; it is a function that gives rank 0's text to all ranks, or "
                "the invitation of a ddl.JobStore"
            )
        if self.hosts and len(self.hosts) != self.size:
            raise InvalidArgument(f"Rendezvous: {len(self.hosts)} names of hosts for {self.size} ranks; name all")

    @property
    def launched(self) -> Launched:
        """What DDL asks of a launcher."""
        if self.size == 1:
            return Launched(self.engine, 0, 1, 0, 1, 0, 1, "")
        if not self.hosts:
            return Launched(self.engine, self.rank, self.size, 0, 0, 0, 0, "")
        return Launched(self.engine, self.rank, self.size, *places(self.rank, self.hosts), "")

    def admission(self, settings: Settings) -> Tuple[Identity, Settings, Optional[StoreServer]]:
        """Return who this process is, by meeting the others as the function ``meet`` does."""
        if self.size == 1:
            return Identity(), settings, None
        return meet(self.launched, self.share, settings)


def places(rank: int, hosts: Sequence[str]) -> Tuple[int, int, int, int]:
    """Return a rank's number on its host, how many are there, and the host's number of how many."""
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    distinct = list(dict.fromkeys(hosts))
    return here.index(rank), len(here), distinct.index(hosts[rank]), len(distinct)


@dataclass(frozen=True)
class JobInvitation:
    """What a process must know to come to a job's store. Whoever knows its text can join the job."""

    addresses: Tuple[str, ...]  #: of the store, the most likely first
    secret: bytes
    encrypt: bool  #: who comes must encrypt

    def text(self) -> str:
        return json.dumps({"secret": self.secret.hex(), "addresses": self.addresses, "encrypt": self.encrypt})

    @staticmethod
    def parse(text: str, who: str) -> JobInvitation:
        """Undo ``text``. ``InvalidArgument`` if it is none; ``who`` is how that begins. The text is never shown."""
        try:
            told = json.loads(text)
            for address in told["addresses"]:
                parse_address(address)
            secret = check_secret(bytes.fromhex(told["secret"]))
            return JobInvitation(tuple(told["addresses"]), secret, bool(told["encrypt"]))
        except (ValueError, KeyError, TypeError) as error:
            what = f"{len(text)} characters" if isinstance(text, str) else f"a {type(text).__name__}"
            raise InvalidArgument(
                f"{who}: what was shared ({what}) is no invitation to a job; all ranks must get the text that rank 0 "
                "has passed to ``share``, or that of ddl.JobStore, as it is"
            ) from error


def meet(
    who: Launched, share: Union[Share, str], settings: Settings
) -> Tuple[Identity, Settings, Optional[StoreServer]]:
    """Return who this process is in a job whose ranks find one another by what is shared. Collective, blocking.

    Also returned: its settings, which encrypt if those of the process do that serves the job's store; and, on rank 0
    unless ``share`` is an invitation, that server, which the caller closes when all ranks have left. Raises
    RendezvousError, InvalidArgument, and what ``share`` raises.
    """
    server = None
    if who.rank == 0 and not isinstance(share, str):
        server, invitation = _invite(who, share, settings)
        address = invitation.addresses[0]
    else:
        label = f"rank {who.rank} of {who.size}"
        invitation = JobInvitation.parse(share if isinstance(share, str) else share(None), label)
        address = _first_that_answers(invitation.addresses, who)
    numbers = (who.rank, who.size, who.local_rank, who.local_size, who.host, who.hosts)
    settings = replace(settings, encrypt=settings.encrypt or invitation.encrypt)
    try:
        return located(Identity(*numbers, address, invitation.secret), settings), settings, server
    except BaseException:
        if server is not None:
            server.close()
        raise


def _invite(who: Launched, share: Share, settings: Settings) -> Tuple[StoreServer, JobInvitation]:
    one_host = who.local_size == who.size
    # Where ranks come and go (DDL_ELASTIC=1), this process is a rank and no witness besides.
    limits = ElasticLimits(script_patience=settings.timeout) if settings.elastic else None
    server, invitation = serve(
        who.size, settings, f"rank 0 cannot serve the job's store on {socket.gethostname()}", one_host, limits
    )
    try:
        share(invitation.text())
    except BaseException:
        server.close()
        raise
    return server, invitation


def serve(
    size: int, settings: Settings, complaint: str, one_host: bool, limits: Optional[ElasticLimits] = None
) -> Tuple[StoreServer, JobInvitation]:
    """Begin to serve the store of a job. ``complaint``: how the error begins if there is no thread for it.

    ``one_host``: all ranks are on this host, and only they can connect.
    """
    secret = secrets.token_bytes(32)
    host, encrypt = "127.0.0.1" if one_host else EVERYWHERE, settings.encrypt
    prepare_encryption(encrypt, settings.openssl)
    with threads_for(complaint):
        server = StoreServer(
            secret,
            size,
            host,
            elastic=limits,
            witness=False,
            encrypt=encrypt,
            host_timeout=settings.host_timeout,
        )
    _close_in_children(server)
    _, port = parse_address(server.address)
    interface = settings.interface
    known = ["127.0.0.1"] if one_host else interface.split(",") if interface else _outside_addresses()
    return server, JobInvitation(tuple(format_address(host, port) for host in known), secret, encrypt)


def located(identity: Identity, settings: Settings) -> Identity:
    """Return ``identity`` with its place on its host, where nobody has said it. Collective then, through the store."""
    if identity.local_size:
        return identity
    own = f"{socket.gethostname()} {settings.host_id or host_id()}"
    patience = settings.start_timeout
    prepare_encryption(settings.encrypt, settings.openssl)
    with StoreClient(identity.store, identity.secret, identity.rank, patience, encrypt=settings.encrypt) as store:
        _, hosts = store.meet(range(identity.size), own, "hosts", patience)
    local_rank, local_size, host, count = places(identity.rank, hosts)
    return replace(identity, local_rank=local_rank, local_size=local_size, cross_rank=host, cross_size=count)


_servers: weakref.WeakSet[StoreServer] = weakref.WeakSet()  # of this process


def _close_in_children(server: StoreServer) -> None:
    """Let a process that is forked from this one hold no connection of ``server`` open."""
    if not _servers:
        os.register_at_fork(after_in_child=_forget_servers)
    _servers.add(server)


def _forget_servers() -> None:
    for server in list(_servers):
        server.close_in_child()


def _outside_addresses() -> List[str]:
    """This host's addresses, those that only this host can use last."""
    return sorted(addresses(), key=is_loopback)[:_MOST_ADDRESSES]


def _first_that_answers(known: Sequence[str], who: Launched) -> str:
    try:
        return first_to_answer(known, _ANSWERS)
    except OSError as error:
        raise RendezvousError(
            f"rank {who.rank} cannot reach the job's store at {', '.join(known)} ({error}); set DDL_INTERFACE on the "
            "host that has it (rank 0's, or that of the program with the ddl.JobStore) to the address by which others "
            "reach it"
        ) from error
