"""What this process knows of the job: who it is, who the others are, and which of them share memory with it.

``init`` makes it, ``shutdown`` ends it. A job of size 1 has no store, no agent and no connections.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import platform
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any, Deque, Dict, List, Optional, Protocol, Sequence, Set, Tuple

from ddl import _core
from ddl._version import __version__
from ddl.bootstrap import launched
from ddl.bootstrap.agent import Agent
from ddl.bootstrap.connect import Nonce, connect_memory, listen_data, listen_memory
from ddl.bootstrap.environ import Identity, Settings
from ddl.errors import ConfigError, Error, ProtocolError, RendezvousError
from ddl.store import rails
from ddl.store.messages import said_by
from ddl.store.rails import RailOffer
from ddl.store.store import StoreClient
from ddl.store.watch import WatchClient
from ddl.tuning.measure import table_file
from ddl.tuning.table import TunedCluster

__all__ = ["Job", "Peer", "identity_and_settings"]

log = logging.getLogger("ddl")

_SHOWN = 4  # ranks that an error lists


@dataclass(frozen=True)
class Peer:
    """A rank as it introduces itself in the store."""

    rank: int
    host: str  # for people
    host_id: str  # ranks with different ones do not even try to share memory
    offers: Tuple[RailOffer, ...]  # its data listeners
    unix_name: str
    nonce: Nonce
    board_offset: int  # of the world communicator
    shared: bool  # shared memory is not switched off
    deterministic: bool
    version: str

    def text(self) -> str:
        fields = dict(vars(self), nonce=[self.nonce.offset, self.nonce.text])
        return json.dumps(fields)

    @staticmethod
    def parse(rank: int, text: str) -> Peer:
        """Undo ``text`` of ``rank``. ``ProtocolError`` if it is not what a rank says."""

        def parsed(fields: Any) -> Peer:
            offers = tuple(RailOffer(*offer) for offer in fields["offers"])
            peer = Peer(**{**fields, "nonce": Nonce(*fields["nonce"]), "offers": offers})
            places = [peer.nonce.offset, peer.board_offset, *(offer.port for offer in offers)]
            texts = [peer.host, peer.host_id, peer.unix_name, peer.version, peer.nonce.text]
            texts += [text for offer in offers for text in (offer.network, offer.address)]
            if peer.rank != rank or not offers or not all(type(place) is int and place >= 0 for place in places):
                raise ValueError("a number is wrong")
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a text is none")
            return peer

        return said_by(rank, text, parsed)

    @property
    def label(self) -> str:
        return f"rank {self.rank} (host {self.host})"


def _boot_id() -> str:
    """Ranks of one running kernel and network namespace have the same; others have no way to swap memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return platform.node()


def _listed(labels: Sequence[str]) -> str:
    """Return the first labels, and how many more there are."""
    more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more


def _classes(size: int, pairs: Set[Tuple[int, int]]) -> Tuple[Tuple[int, ...], ...]:
    """Group ranks that all share memory with one another; ``pairs`` are those that proved it."""
    groups: List[List[int]] = []
    for rank in range(size):
        for group in groups:
            if all((member, rank) in pairs for member in group):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return tuple(tuple(group) for group in groups)


class Droppable(Protocol):
    """What a program may let go without closing it."""

    @property
    def in_use(self) -> bool:
        """Whether the program can still come back to it."""

    def close(self) -> None:
        """Leave."""


class Job:
    """The process's part in the job. ``memories[r]``: the mapped arena of rank ``r``; ``hosts``: who shares memory."""

    def __init__(self, identity: Identity, settings: Settings, round: int) -> None:
        self.identity = identity
        self.settings = settings
        self.round = round
        self.memories: Dict[int, _core.PeerMemory] = {}
        self.peers: Tuple[Peer, ...] = ()
        self.hosts: Tuple[Tuple[int, ...], ...] = ((0,),)
        self.rails: Tuple[str, ...] = ("",)
        self.offer = table_file.TableOffer()
        #: Groups whose communicators the program has let go; ``close_dropped`` closes them.
        self.dropped: Deque[Droppable] = collections.deque()
        self._ended = False
        self._groups = 0  # numbers given out in a job of one rank
        self.agent: Optional[Agent] = None
        self._store: Optional[StoreClient] = None
        self._nonce_block: Any = None
        self._introduced = threading.Event()  # ``peers`` is filled in
        if settings.shm_size:
            _core.configure_arena(settings.shm_size)
        _core.configure_gpu_driver(settings.cuda_library, settings.gpu_wait == "stream" or settings.nccl)

    @property
    def secret(self) -> bytes:
        assert self.identity.secret is not None  # a job of more than one rank has one
        return self.identity.secret

    def rank_label(self, rank: int) -> str:
        return self.peers[rank].label if self.peers else f"rank {rank}"

    def rendezvous(self, board_offset: int) -> None:
        """Meet the other ranks: exchange addresses through the store, and arenas with the ranks of this host.

        Collective, blocking. Raises ``RendezvousError`` naming the ranks that never came.
        """
        identity, limit = self.identity, self.settings.start_timeout
        if identity.size == 1:
            return
        assert identity.store is not None
        deadline = time.monotonic() + limit
        store = self._store = StoreClient(identity.store, self.secret, identity.rank, limit)
        watch = WatchClient(identity.store, self.secret, identity.rank, limit)
        listeners, offers = self._listen(store.local_host)
        memory, unix_name = listen_memory()
        nonce, self._nonce_block = Nonce.place()
        self.agent = Agent(
            rank=identity.rank,
            secret=self.secret,
            watch=watch,
            data_listeners=listeners,
            memory_listener=memory,
            nonce_of=self._nonce_of,
            label_of=self.rank_label,
            congestion=self.settings.congestion,
        )
        me = Peer(
            rank=identity.rank,
            host=socket.gethostname(),
            host_id=self.settings.host_id or _boot_id(),
            offers=tuple(offers),
            unix_name=unix_name,
            nonce=nonce,
            board_offset=board_offset,
            shared=self.settings.shm,
            deterministic=self.settings.deterministic,
            version=__version__,
        )
        everybody = store.check_in(me.text(), limit, round=2 * self.round)
        self.peers = tuple(Peer.parse(rank, text) for rank, text in enumerate(everybody))
        self.identity = launched.numbered(identity, [f"{peer.host} {peer.host_id}" for peer in self.peers])
        self.rails = rails.choose(
            [peer.host_id for peer in self.peers], [p.offers for p in self.peers], self.settings.rails
        )
        watch.also_over([offer.address for offer in offers if offer.network in self.rails])
        self._introduced.set()
        self._check_versions()
        self._check_deterministic()
        # Second check-in: nobody connects before everybody has everybody's nonce, and everybody learns who met whom.
        met = self._meet_neighbours(me, deadline)
        remaining = max(1.0, deadline - time.monotonic())
        own: Dict[str, Any] = {"met": met}
        if me.rank == 0:
            own["tuned"] = vars(table_file.offer(self.settings, self.cluster()))
        answers = store.check_in(json.dumps(own), remaining, round=2 * self.round + 1)
        self.offer = said_by(0, answers[0], lambda said: table_file.TableOffer(**said["tuned"]))
        self._conclude([said_by(rank, text, lambda said: list(said["met"])) for rank, text in enumerate(answers)])

    def meet(self, ranks: Sequence[int], value: str) -> Tuple[int, List[str]]:
        """Swap values among some ranks of the job, which call this alike; return them in that order. Blocking.

        Also returned: how many groups of this job have asked for a number before. Raises ``RendezvousError`` on all
        that wait when the first of them has waited for DDL_START_TIMEOUT.
        """
        assert self._store is not None
        try:
            return self._store.meet(ranks, value, f"meetings/{self.round}", self.settings.start_timeout)
        except RendezvousError as error:
            raise RendezvousError(
                f"{self.rank_label(self.identity.rank)}: a new group of ranks {_listed(list(map(str, ranks)))} was not "
                f"made: {error}; all of them must make it, and in the same order as other groups (more time: "
                "DDL_START_TIMEOUT)"
            ) from None

    def count_group(self) -> int:
        """Return how many groups of this job have asked for a number before, by this or by ``meet``. Asks the store."""
        if self._store is None:  # a job of one rank
            self._groups += 1
            return self._groups - 1
        return self._store.count(f"meetings/{self.round}")

    def let_go(self, group: Droppable) -> None:
        """Note that the program has dropped the communicator of ``group``. Called in any thread at any moment."""
        if not self._ended:  # else it is closed, and would keep this job and its memory
            self.dropped.append(group)

    def close_dropped(self) -> None:
        """Close groups that the program has dropped and does not use any more. Called before a new group is made."""
        for _ in range(len(self.dropped)):
            try:
                group = self.dropped.popleft()
            except IndexError:  # another thread makes a group, too
                return
            if group.in_use:
                self.dropped.append(group)
            else:
                group.close()

    def cluster(self) -> TunedCluster:
        """Return what a table of ``ddl tune`` holds for; the same on all ranks, once they have met."""
        ranks: Dict[Tuple[str, str], int] = {}
        for peer in self.peers:
            ranks[peer.host, peer.host_id] = ranks.get((peer.host, peer.host_id), 0) + 1
        return TunedCluster(
            hosts=tuple(f"{host}:{count}" for (host, _), count in ranks.items()),
            dimensions=self.settings.dimensions,
            shared_memory=all(peer.shared for peer in self.peers),
            rails=len(self.rails),
            connections=self.settings.connections,
            wire=self.settings.wire,
        )

    def _listen(self, towards_store: str) -> Tuple[List[socket.socket], List[RailOffer]]:
        """Listen for data wherever there may be a rail; only the first must work."""
        listeners: List[socket.socket] = []
        offers = []
        for place in rails.places(self.settings.interface, towards_store):
            try:
                listener = listen_data(place.address, self.settings.congestion)
            except OSError:
                if not listeners:
                    raise
                continue
            listeners.append(listener)
            offers.append(place._replace(port=listener.getsockname()[1]))
        return listeners, offers

    def address(self, rank: int, rail: int) -> Tuple[str, int]:
        """Return where ``rank`` takes data on a rail."""
        offers = self.peers[rank].offers
        if len(self.rails) == 1:
            return offers[0].address, offers[0].port
        return next((offer.address, offer.port) for offer in offers if offer.network == self.rails[rail])

    def _nonce_of(self, rank: int) -> Nonce:
        """Called when a rank swaps memory with us, which may be before the store's answer has come to us."""
        if not self._introduced.wait(self.settings.start_timeout) or not 0 <= rank < len(self.peers):
            raise ProtocolError(f"rank {rank} is not in the store, but wants to share memory")
        return self.peers[rank].nonce

    def _check_versions(self) -> None:
        versions = sorted({peer.version for peer in self.peers})
        if len(versions) > 1:
            raise ConfigError(
                f"the ranks run different versions of DDL ({', '.join(versions)}): "
                + ", ".join(f"{peer.label}: {peer.version}" for peer in self.peers)
                + "; install the same one everywhere"
            )

    def _check_deterministic(self) -> None:
        """Raise ``ConfigError``, on all ranks, unless all ask for the same."""
        asking = [peer.label for peer in self.peers if peer.deterministic]
        if asking and len(asking) < len(self.peers):
            refusing = [peer.label for peer in self.peers if not peer.deterministic]
            raise ConfigError(
                f"rank {self.identity.rank}: {_listed(asking)} asked for deterministic sums, {_listed(refusing)} did "
                "not; pass the same deterministic= to init, or set the same DDL_DETERMINISTIC, on every rank"
            )

    def _meet_neighbours(self, me: Peer, deadline: float) -> List[int]:
        """Swap arenas with the lower ranks of this host; return those with which it worked."""
        met = []
        for peer in self.peers[: me.rank]:
            if not (me.shared and peer.shared and me.host_id == peer.host_id):
                continue
            try:
                memory = connect_memory(peer.unix_name, self.secret, me.rank, peer.rank, self._nonce_of, deadline)
            except (OSError, Error) as error:
                log.warning("rank %d: no shared memory with %s: %s", me.rank, peer.label, error)
                continue
            if memory is not None:
                self.memories[peer.rank] = memory
                met.append(peer.rank)
        return met

    def _conclude(self, met: Sequence[Sequence[int]]) -> None:
        """All ranks have the same answers, so all come to the same groups."""
        assert self.agent is not None
        rank = self.identity.rank
        pairs = {(lower, higher) for higher, lowers in enumerate(met) for lower in lowers}
        self.hosts = _classes(self.identity.size, pairs)
        host_ranks = next(group for group in self.hosts if rank in group)
        for peer in host_ranks:
            if peer > rank:
                self.memories[peer] = self.agent.memory_of(peer, self.settings.start_timeout)
        # A pair that met but ended in different groups must not be used by one side only.
        self.memories = {peer: memory for peer, memory in self.memories.items() if peer in host_ranks}

    def close(self) -> None:
        """Leave the job. Idempotent. Mapped memory stays mapped: see ``ddl.api``."""
        self._ended = True
        self.dropped.clear()
        for memory in self.memories.values():
            memory.close_socket()
        agent, self.agent = (
            self.agent,
            None,
        )  # which knows us: without this, memory would stay until the next collection
        if agent is not None:
            agent.close()
        if self._store is not None:
            self._store.close()

    def close_in_child(self) -> None:
        """After a fork, in the child: see ``Agent.close_in_child``."""
        if self.agent is not None:
            self.agent.close_in_child()


def identity_and_settings(comm: Any = None) -> Tuple[Identity, Settings]:
    """Find out who this process is and how it is to behave: from the environment, or from an mpi4py communicator."""
    settings = Settings.from_environ(os.environ)
    identity = Identity.from_environ(os.environ)
    if identity.store:  # ddlrun's word counts
        if comm is not None and (comm.Get_rank(), comm.Get_size()) != (identity.rank, identity.size):
            raise ConfigError(
                f"ddlrun made this rank {identity.rank} of {identity.size}, but the communicator given to init() says "
                f"rank {comm.Get_rank()} of {comm.Get_size()}; leave out one of the two"
            )
        return identity, settings
    return launched.identity(os.environ, settings, comm) or identity, settings
