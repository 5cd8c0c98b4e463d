"""What this process knows of the job: who it is, who the others are, and which of them share memory with it.

``init`` makes it, ``shutdown`` ends it. A job of size 1 has no store, no agent and no connections.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from ddl import _core, clock
from ddl._comm.dropped_groups import DroppedGroups
from ddl._comm.fit import SHOWN, check_fit
from ddl._comm.peer import Peer, sharing
from ddl._version import __version__
from ddl.bootstrap import launched
from ddl.bootstrap.agent import Agent
from ddl.bootstrap.cores import Cores, shares
from ddl.bootstrap.environ import Identity, Settings
from ddl.bootstrap.generations import Generations
from ddl.bootstrap.peer_handshake import Nonce, connect_memory, listen_memory, listen_on_rails
from ddl.bootstrap.rail_news import RailEnds
from ddl.errors import Error, PeerLost, ProtocolError, RendezvousError
from ddl.machine import host_id
from ddl.net import rails
from ddl.net.address import apart_after
from ddl.net.auth import name_of_job
from ddl.net.encryption import prepare_encryption
from ddl.net.interfaces import networks
from ddl.store.messages import said_by
from ddl.store.server import StoreServer
from ddl.store.watch import WatchClient
from ddl.text.rank_names import listed
from ddl.tuning.measure import table_file
from ddl.tuning.table import TunedCluster

__all__ = ["Job"]

log = logging.getLogger("ddl")

_T = TypeVar("_T")


class Job:
    """The process's part in the job. ``memories[r]``: the mapped arena of rank ``r``; ``hosts``: who shares memory.

    Here "rank" is the number of a process: its rank in the job's first generation, or for a process that came later a
    number that nobody had. ``number`` is that of this process, ``members[r]`` that of the present rank ``r``.
    """

    def __init__(self, identity: Identity, settings: Settings, round: int) -> None:
        self.identity = identity  #: of now
        self.settings = settings
        self.round = round  #: of init, or the generation where ranks come and go
        self.generation = 0
        self.paused_seconds = 0.0  #: spent on coming from one generation to the next
        self.is_member = True  #: False: it was started later, and its program is not ready to take part
        self.number = identity.rank
        self.members: Tuple[int, ...] = tuple(range(identity.size))
        self.memories: Dict[int, _core.PeerMemory] = {}
        self.peers: Dict[int, Peer] = {}
        self.hosts: Tuple[Tuple[int, ...], ...] = ((0,),)
        self.generations: Optional[Generations] = None  #: where ranks come and go
        self.rails: Tuple[str, ...] = ("",)
        self.offer = table_file.TableOffer()
        self.dropped = DroppedGroups()
        self._host_timeout = settings.host_timeout  # until the store has said what counts
        self._groups = 0  # numbers given out in a job of one rank
        self.agent: Optional[Agent] = None
        self.server: Optional[StoreServer] = None  #: of the job's store, if it ends with this process's part
        self._watch: Optional[WatchClient] = None  # what tells the store that this process lives, and asks it
        self._nonce_block: Any = None
        self._introduced = threading.Condition()  # somebody was added to ``peers``
        self.following = threading.Lock()  #: held while another store takes the place of the one before
        self._pairs: Set[Tuple[int, int]] = set()  # processes that have proved to share memory; the lower one first
        if settings.shm_size:
            _core.configure_arena(settings.shm_size)
        _core.configure_gpu_driver(settings.cuda_library, settings.streams_wait)

    @property
    def secret(self) -> bytes:
        assert self.identity.secret is not None  # a job of more than one rank has one
        return self.identity.secret

    @property
    def apart_after(self) -> float:
        """Seconds after which two hosts of this job count as apart that do not hear each other."""
        return apart_after(self._host_timeout)

    def rank_label(self, number: int) -> str:
        """Return how a process is called: by its present rank."""
        rank = self.members.index(number) if number in self.members else number
        return f"rank {rank} (host {self.peers[number].host})" if number in self.peers else f"rank {rank}"

    def introduction(self) -> Dict[str, Any]:
        """Return who this process is now, for readers of what it records (ddl/records)."""
        identity = self.identity
        return {
            "rank": identity.rank,
            "size": identity.size,
            "number": self.number,
            "host": self.peers[self.number].host if self.number in self.peers else socket.gethostname(),
            "local_rank": identity.local_rank,
            "generation": self.generation,
            "paused_seconds": self.paused_seconds,
            "store": identity.store,
            "job": name_of_job(identity.secret),
            "timeout": self.settings.timeout,
            "version": __version__,
        }

    def record_identity(self) -> None:
        """Tell readers of the record who this process is now."""
        _core.record_identity(json.dumps(self.introduction()))

    def wait_at_most(self, seconds: float) -> None:
        """Wait so long for other ranks from now on, instead of DDL_START_TIMEOUT."""
        self.settings = replace(self.settings, start_timeout=seconds)

    def rendezvous(self, board_offset: int) -> None:
        """Meet the other ranks: exchange addresses through the store, and arenas with the ranks of this host.

        Collective, blocking. Raises ``RendezvousError`` naming the ranks that never came.
        """
        identity, limit = self.identity, self.settings.start_timeout
        if identity.size == 1 and not (identity.store and self.settings.elastic):
            return
        assert identity.store is not None
        deadline = clock.now() + limit
        watch, me = self.come(board_offset)
        everybody = watch.check_in(me.text(), limit, round=2 * self.round)
        self.introduce({rank: Peer.parse(rank, text) for rank, text in enumerate(everybody)})
        self.identity = launched.numbered(identity, [f"{p.host} {p.host_id}" for p in self.peers.values()])
        self.choose_rails()
        self.check_fit()
        # Second check-in: nobody connects before everybody has everybody's nonce, and everybody learns who met whom.
        met = self.meet_neighbours(me, deadline)
        remaining = max(1.0, deadline - clock.now())
        own: Dict[str, Any] = {"met": met}
        if me.rank == 0:
            own["tuned"] = vars(table_file.offer(self.settings, self.cluster()))
        answers = watch.check_in(json.dumps(own), remaining, round=2 * self.round + 1)
        self.offer = said_by(0, answers[0], lambda said: table_file.TableOffer(**said["tuned"]))
        met_by = {rank: said_by(rank, text, lambda said: list(said["met"])) for rank, text in enumerate(answers)}
        self.conclude(met_by)

    def come(self, board_offset: int) -> Tuple[WatchClient, Peer]:
        """Connect to the store, begin to listen, and return how this process introduces itself to the others."""
        identity, limit = self.identity, self.settings.start_timeout
        prepare_encryption(self.settings.encrypt, self.settings.openssl)
        self._watch = watch = self.connect_to_store(identity.store, limit, identity.store_also)
        self._host_timeout = watch.host_timeout
        newcomer = self.settings.incarnation >= 0  # the others may use a network that is lost here: it may come back
        wanted, congestion = self.settings.interface, self.settings.congestion
        listeners, offers = listen_on_rails(wanted, congestion, watch.local_host, dead=newcomer)
        memory, unix_name = listen_memory()
        nonce, self._nonce_block = Nonce.place()
        here = self.settings.host_id or host_id()
        if self.settings.elastic:
            where, encrypt = [offers[0].address], self.settings.encrypt
            self.generations = Generations.of(watch, here, self.secret, where, newcomer, encrypt)
        self.agent = Agent(
            rank=self.number,
            secret=self.secret,
            watch=watch,
            data_listeners=listeners,
            memory_listener=memory,
            nonce_of=self._nonce_of,
            label_of=self.rank_label,
            rail_ends_of=self._rail_ends,
            congestion=self.settings.congestion,
            encrypt=self.settings.encrypt,
            generations=self.generations,
            ranks_per_core=identity.local_size / len(os.sched_getaffinity(0)),
        )
        self.me = me = Peer(
            rank=self.number,
            host=socket.gethostname(),
            host_id=here,
            offers=tuple(offers),
            unix_name=unix_name,
            nonce=nonce,
            cores=Cores.of_this_process(),
            board_offset=board_offset,
            shared=self.settings.shm,
            deterministic=self.settings.deterministic,
            encrypt=self.settings.encrypt,
            checksum=self.settings.checksum,
            version=__version__,
        )
        return watch, me

    def put_first(self, network: str) -> None:
        """Let ``network`` be the main rail of this process, if it is on it: that of the processes that it comes to.

        It may have no carrier here now. Other networks without one are left out, as for the job's first processes.
        """
        alive = networks()
        usable = [offer for offer in self.me.offers if offer.network in (network, *alive) or offer.network[0] == "#"]
        self.me = replace(self.me, offers=tuple(sorted(usable, key=lambda offer: offer.network != network)))

    @property
    def network_of_store(self) -> str:
        """The network by which this process reached the store."""
        assert self._watch is not None
        host = self._watch.local_host
        return next((offer.network for offer in self.me.offers if offer.address == host), "")

    def connect_to_store(self, address: str, limit: float, others: Sequence[str] = ()) -> WatchClient:
        """Connect to the store at one of its addresses, with a deadline of ``limit`` seconds."""
        return WatchClient(address, self.secret, self.number, limit, encrypt=self.settings.encrypt, others=others)

    def use_store(self, watch: WatchClient) -> None:
        """Ask another store from now on: the one before is gone."""
        with self._introduced:
            self._watch = watch
            self._introduced.notify_all()
        self._use_all_rails()

    def ask(self, question: Callable[[WatchClient], _T]) -> _T:
        """Return the store's answer. If that store is lost where ranks come and go, ask the next one the same."""
        while True:
            watch = self._watch
            assert watch is not None
            try:
                return question(watch)
            except PeerLost:
                if self.generations is None:
                    raise
                if not self._another_store_than(watch, self.generations.limits.patience):
                    raise

    def confirm(self) -> None:
        """Raise ``LeftOut`` unless the store still counts this process as one of the job. Blocking: asks the store."""
        if self._watch is not None:
            self.ask(lambda store: store.count("confirmed"))

    def _another_store_than(self, watch: WatchClient, patience: float) -> bool:
        with self._introduced:
            return self._introduced.wait_for(lambda: self._watch is not watch, patience)

    def introduce(self, peers: Dict[int, Peer]) -> None:
        """These processes are known from now on, also to those that swap memory with us."""
        with self._introduced:
            self.peers = {**self.peers, **peers}
            self._introduced.notify_all()

    def cores(self) -> Dict[int, float]:
        """Return how many cores each member has for itself; the same on all ranks, once they have met."""
        return shares({number: self.peers[number].cores for number in self.members if number in self.peers})

    def choose_rails(self) -> None:
        """Find out which networks carry data: it follows from what all members have said, so all find the same."""
        peers = [self.peers[number] for number in self.members]
        self.rails = rails.choose([p.host_id for p in peers], [p.offers for p in peers], self.settings.rails)
        if self.generations is not None:
            self.generations.own_addresses = [self.address(self.number, rail)[0] for rail in range(len(self.rails))]
        self._use_all_rails()

    def _use_all_rails(self) -> None:
        """Let the connection to the store use all rails: one of them may be lost."""
        assert self._watch is not None
        self._watch.also_over([offer.address for offer in self.me.offers if offer.network in self.rails])

    def meet(self, ranks: Sequence[int], value: str) -> Tuple[int, List[str]]:
        """Swap values among some ranks of the job, which call this alike; return them in that order. Blocking.

        Also returned: how many groups of this job have asked for a number before. Raises ``RendezvousError`` on all
        that wait when the first of them has waited for DDL_START_TIMEOUT.
        """
        try:
            patience = self.settings.start_timeout
            return self.ask(lambda store: store.meet(ranks, value, f"meetings/{self.round}", patience))
        except RendezvousError as error:
            raise RendezvousError(
                f"{self.rank_label(self.number)}: a new group of ranks {listed(list(map(str, ranks)), SHOWN)} was not "
                f"made: {error}; all of them must make it, and in the same order as other groups (more time: "
                "DDL_START_TIMEOUT)"
            ) from None

    def count_group(self) -> int:
        """Return how many groups of this job have asked for a number before, by this or by ``meet``. Asks the store."""
        if self._watch is None:  # a job of one rank
            self._groups += 1
            return self._groups - 1
        return self.ask(lambda store: store.count(f"meetings/{self.round}"))

    def cluster(self) -> TunedCluster:
        """Return what a table of ``ddl tune`` holds for; the same on all ranks, once they have met."""
        ranks: Dict[Tuple[str, str], int] = {}
        for peer in (self.peers[number] for number in self.members):
            ranks[peer.host, peer.host_id] = ranks.get((peer.host, peer.host_id), 0) + 1
        return TunedCluster(
            hosts=tuple(f"{host}:{count}" for (host, _), count in ranks.items()),
            dimensions=self.settings.dimensions,
            shared_memory=all(self.peers[number].shared for number in self.members),
            rails=len(self.rails),
            connections=self.settings.connections,
            wire=self.settings.wire,
        )

    def address(self, rank: int, rail: int, of: Sequence[str] = ()) -> Tuple[str, int]:
        """Return where ``rank`` takes data on a rail ``of`` these; without: of the present generation's."""
        offer = rails.offer_on(of or self.rails, rail, self.peers[rank].offers)
        return offer.address, offer.port

    def _rail_ends(self, rank: int, rail: int) -> Optional[RailEnds]:
        """Return how people know a rail to ``rank``; None where an older generation had one, which ends."""
        peer, present = self.peers.get(rank), self.rails
        if peer is None or rail >= len(present):
            return None
        own, far = (rails.offer_on(present, rail, offers).address for offers in (self.me.offers, peer.offers))
        return RailEnds(self.rank_label(rank), own, far)

    def _nonce_of(self, rank: int) -> Nonce:
        """Called when a rank swaps memory with us, which may be before the store's answer has come to us."""
        with self._introduced:
            if not self._introduced.wait_for(lambda: rank in self.peers, self.settings.start_timeout):
                raise ProtocolError(f"rank {rank} is not in the store, but wants to share memory")
            return self.peers[rank].nonce

    def check_fit(self) -> None:
        """Raise ``ConfigError``, on all ranks, unless all that are known can work with one another."""
        check_fit(self.identity.rank, list(self.peers.values()), self.rank_label)

    def meet_neighbours(self, me: Peer, deadline: float) -> List[int]:
        """Swap arenas with the lower ranks of this host; return those with which it worked."""
        assert self.agent is not None
        met = []
        for peer in [self.peers[number] for number in sorted(self.members) if number < me.rank]:
            if not (me.shared and peer.shared and me.host_id == peer.host_id):
                continue
            if peer.rank in self.memories:
                met.append(peer.rank)
                continue
            try:
                neighbour = connect_memory(
                    *(peer.unix_name, self.secret, me.rank, peer.rank, self._nonce_of, deadline, self.agent.cell_fd)
                )
            except (OSError, Error) as error:
                log.warning("rank %d: no shared memory with %s: %s", me.rank, self.rank_label(peer.rank), error)
                continue
            if neighbour is not None:
                self.memories[peer.rank] = neighbour.memory
                met.append(peer.rank)
                if neighbour.cell_fd >= 0:
                    self.agent.know(peer.rank, neighbour.cell_fd, neighbour.pid)
        return met

    def conclude(self, met: Mapping[int, Sequence[int]]) -> None:
        """All ranks have the same answers, so all come to the same groups."""
        assert self.agent is not None
        rank = self.number
        self._pairs |= {(lower, higher) for higher, lowers in met.items() for lower in lowers}
        self.hosts = sharing(self.members, self._pairs)
        host_ranks = next(group for group in self.hosts if rank in group)
        for peer in host_ranks:
            if peer > rank and peer not in self.memories:
                self.memories[peer] = self.agent.memory_of(peer, self.settings.start_timeout)
        # A pair that met but ended in different groups must not be used by one side only.
        self.memories = {peer: memory for peer, memory in self.memories.items() if peer in host_ranks}

    def forget_all_but(self, members: Sequence[int]) -> None:
        """Let go of the processes that are not ``members``, and of their memory."""
        for number in [number for number in self.peers if number not in members]:
            self.memories.pop(number, None)  # groups that it was in may have it still: see ``Group.deserted``
            if self.agent is not None:
                self.agent.forget(number)
            del self.peers[number]
        self._pairs = {pair for pair in self._pairs if pair[0] in members and pair[1] in members}

    def close(self) -> None:
        """Leave the job. Idempotent. Mapped memory stays mapped: see ``ddl.jobs``."""
        self.dropped.end()
        for memory in self.memories.values():
            memory.close_socket()
        agent, self.agent = self.agent, None  # it knows us: memory would stay until the next collection
        if agent is not None:
            agent.close()
        if self._watch is not None:
            self._watch.close()  # there may have been no agent yet

    def close_in_child(self) -> None:
        """After a fork, in the child: see ``Agent.close_in_child``."""
        if self.agent is not None:
            self.agent.close_in_child()
