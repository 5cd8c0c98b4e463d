"""``Group``: what stands behind a ``Communicator``: its native core, its topology, its plans and its connections.

A group plans a collective at its first call, and tells the core which plan is for which size. The connections that the
plans need are made then, in the background (connector.py).
"""

from __future__ import annotations

import errno
import json
import logging
import os
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ddl import _core
from ddl._comm.connector import Connector
from ddl._comm.job import Job
from ddl._comm.rebalance import Rebalance
from ddl._comm.stuck import end_stuck
from ddl.bootstrap.agent_records import Member, NamedCalls
from ddl.bootstrap.cores import helpers
from ddl.bootstrap.environ import WIRE_CODECS
from ddl.errors import InternalError, ResourceError
from ddl.plan import build
from ddl.plan.ir import Collective
from ddl.plan.lower import lower, one_message
from ddl.records.announcement import announce
from ddl.records.layout import WORLDS
from ddl.records.stacks import let_stacks_be_read
from ddl.store.messages import said_by
from ddl.topology import Dimension, Topology
from ddl.tuning.select import Lines, rounded_once, select
from ddl.tuning.table import Table, explain

__all__ = ["Group", "discover"]

log = logging.getLogger("ddl")

_SUBSETS = WORLDS // 2  # numbers of communicators of ``subset`` begin so much later than that of all ranks
RECORDED = 2048  #: collectives of all ranks that the recorder remembers
RECORDED_OF_PARTS = 64  #: there may be many of them
_SLOTS = {
    _core.LANE_SMALL: (0,),
    _core.LANE_LARGE: tuple(range(1, 1 + _core.LARGE_SLOTS)),
    _core.LANE_POINT_TO_POINT: (1 + _core.LARGE_SLOTS,),
}


def discover(hosts: Sequence[Sequence[int]], dimensions: str = "") -> Topology:
    """Return the topology of ranks that share memory in groups ``hosts``.

    ``dimensions`` (DDL_DIMENSIONS) lays them out instead of "ranks per host x hosts"; ranks are then taken host by
    host. Its innermost dimensions count as shared as far as memory really is shared. ``ConfigError`` if its product is
    not the number of ranks.
    """
    order = [rank for host in hosts for rank in host]
    size = len(order)
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}
    if dimensions:
        plain = Topology.parse(dimensions, size=size)
        shared, block = 0, 1
        for dimension in plain.dimensions:
            block *= dimension.size
            if any(len({host_of[rank] for rank in order[i : i + block]}) > 1 for i in range(0, size, block)):
                break
            shared += 1
        return Topology.parse(dimensions, shared=shared, size=size).with_order(order)
    per_host = {len(host) for host in hosts}
    if len(per_host) > 1:
        return Topology.flat(size).with_order(order)  # uneven: one ring over all, host by host
    local = per_host.pop()
    if local == size:
        return Topology.flat(size, shared=True)
    if local == 1:
        return Topology.flat(size).with_order(order)
    inner, outer = Dimension("ranks per host", local, shared=True), Dimension("hosts", size // local)
    return Topology((inner, outer), tuple(order))


class Group:
    """One group of ranks of the job. ``ranks[r]`` is the world rank of rank ``r``.

    ``wire``: what large all-reduces of float32 are written as between hosts; default: as DDL_WIRE says.
    ``racks``, which only a group of all ranks may have, are hosts (numbers in ``job.hosts``), as many in each.
    """

    def __init__(
        self,
        job: Job,
        core: _core.Communicator,
        ranks: Sequence[int],
        boards: Sequence[int],
        number: int,
        tuned: Optional[Mapping[Collective, Lines]] = None,
        racks: Sequence[Sequence[int]] = (),
        deterministic: bool = False,
        wire: Optional[str] = None,
    ) -> None:
        self.job = job
        self.core = core
        self.ranks = tuple(ranks)
        self.number = number
        self.size = len(self.ranks)
        self.rank = self.ranks.index(job.number)
        self._children: List[Group] = []
        self._left = False
        self.deterministic = deterministic or job.settings.deterministic
        self._tuned = tuned
        self._table: Optional[Table] = None
        self._planned: Set[Collective] = set()
        self.next_number = number + 1
        index = {world: rank for rank, world in enumerate(self.ranks)}
        for world, rank in index.items():
            if world in job.memories:
                core.add_neighbour(rank, job.memories[world], boards[rank])
        hosts = [[index[world] for world in host if world in index] for host in job.hosts]
        # Dimensions describe the whole job; a part of it is laid out by its hosts.
        whole = self.size == job.identity.size and not job.generation  # another number of ranks has other dimensions
        topology = discover([host for host in hosts if host], job.settings.dimensions if whole else "")
        cores = job.cores()
        topology = topology.with_cores(int(min(cores.values(), default=0)))
        self.topology = topology.in_racks(racks) if racks else topology
        self._racks = racks
        self.wire = wire or job.settings.wire or "float32"
        core.introduce(self.who, [job.rank_label(world) for world in self.ranks], number, list(self.ranks))
        core.set_planner(self._plan)
        core.set_rails(len(job.rails))
        core.set_silence(job.apart_after)
        core.set_helpers(helpers(cores.get(job.number, 0.0), job.settings.cores) if self.size > 1 else 0)
        self._connector = Connector(job, core, number, self.rank, self.ranks)
        if job.settings.rebalance:
            obstacle = Rebalance.why_not(self.topology, self.deterministic)
            if not obstacle:
                self._rebalance = Rebalance(core, self.rank, self.size, self.late, self._use_late)
            elif self.rank == 0 and number % WORLDS == 0:
                log.warning("rank 0: DDL_REBALANCE changes nothing here: %s", obstacle)
        self._member = Member(number, core, self.ranks, f"communicator {number}" if number % WORLDS else "")
        if job.agent is not None:
            job.agent.add(self._member)
            if number % WORLDS and set(self.ranks) == set(job.members):
                job.agent.stragglers.also_watch(core)

    @staticmethod
    def make_core(job: Job, rank: int, size: int, timeout: Optional[float] = None) -> _core.Communicator:
        """Make the native core of a group, without peers yet; ``timeout``: seconds of an operation (the job's)."""
        settings, identity = job.settings, job.identity
        cores = len(os.sched_getaffinity(0))
        # Long spinning is only worth it where nobody else wants the core; a yield costs little where nobody does.
        crowded = identity.local_size > cores
        spin = settings.spin_us if settings.spin_us >= 0 else (0 if crowded else 50)
        return _core.Communicator(
            rank=rank,
            size=size,
            timeout=settings.timeout if timeout is None else timeout,
            spin_us=spin,
            yield_us=400,
            connections=settings.connections,
            read_from=settings.read_from,
            checksums=settings.checksum,
            recorded=RECORDED if size == identity.size else RECORDED_OF_PARTS,
        )

    @property
    def who(self) -> str:
        """How errors begin: this process in the job, and in this group if that is only a part of it."""
        identity = self.job.identity
        host = f" host {self.job.peers[self.job.number].host}" if self.job.peers else ""
        host += f" generation {self.job.generation}" if self.job.generation else ""
        part = "" if self.size == identity.size else f" as rank {self.rank}/{self.size} of communicator {self.number}"
        return f"[rank {identity.rank}/{identity.size}{host}{part}]"

    @property
    def named_calls(self) -> NamedCalls:
        """What users have submitted by name, if this group's own operations only agree on names."""
        return self._member.named

    # --- planning ---

    def _plan(self, collective_number: int, root: int) -> None:
        """Called by the core when an operation needs a plan for the first time."""
        collective = Collective(collective_number)
        if collective in (Collective.SEND, Collective.RECV):
            peers = [rank for rank in range(self.size) if rank != self.rank] if root == self.rank else [root]
            native = one_message(collective, self.rank, self.size, peers)
            self._connect(peers, _core.LANE_POINT_TO_POINT, 1, 1)
            lane = _core.LANE_POINT_TO_POINT
            choice = _core.Choice(max_bytes=2**63, lane=lane, piece_bytes=0, in_flight=1, plan=native, name="message")
            self.core.install(collective, root, [choice])
            return
        self._planned.add(collective)
        self.core.install(collective, root, self._choices(collective, root))

    def _use_late(self, ranks: Tuple[int, ...]) -> None:
        """Plan large all-reduces with other late ranks from now on: all ranks do so between the same collectives."""
        self.topology = self.topology.with_late(ranks)
        if Collective.ALLREDUCE in self._planned:
            self.core.replace(Collective.ALLREDUCE, 0, self._choices(Collective.ALLREDUCE, 0))

    def _choices(self, collective: Collective, root: int) -> List[_core.Choice]:
        """Return which plan is for which size, and have the connections made that they need."""
        choices: List[_core.Choice] = []
        lowered: Dict[Tuple[str, bool], _core.Plan] = {}
        settings = self.job.settings
        codec = WIRE_CODECS.get(self.wire, 0)
        lines = select(collective, self.topology, settings.algorithm, self._tuned, self.deterministic)
        if self.wire == "int8" and not self.deterministic:
            lines = rounded_once(lines)
        if self.rank == 0 and self.number % WORLDS == 0 and log.isEnabledFor(logging.INFO):
            for text in explain(collective, lines, self._table, settings.algorithm):
                log.info("%s", text)
        for line in lines:
            # A piece waits for all ranks. So in one piece all is added up before late ranks come.
            whole = bool(self.topology.late) and line.algorithm == "direct"
            plan = build(collective, line.algorithm, self.topology, self.rank, root)
            key = (line.algorithm, line.coded)
            if key not in lowered:
                lowered[key] = lower(plan, self.topology, codec if line.coded else 0)
            lane = _core.LANE_SMALL if line.small else _core.LANE_LARGE
            self._connect(plan.peers, lane, len(plan.channels), line.in_flight)
            choices.append(
                _core.Choice(
                    max_bytes=line.max_bytes,
                    lane=lane,
                    piece_bytes=0 if whole else line.piece_bytes,
                    in_flight=line.in_flight,
                    plan=lowered[key],
                    name=line.algorithm,
                )
            )
        return choices

    def use(self, table: Table) -> None:
        """Choose by ``table``, and be laid out by its racks; all ranks have it alike.

        Call it before collectives are planned: the core keeps plans.
        """
        if self._planned & set(table.lines):
            raise InternalError(f"{self.who}: a table came after plans of {self._planned & set(table.lines)}")
        self._table, self._tuned = table, table.lines
        if table.racks is not None:
            self.topology, self._racks = table.lay_out(self.topology), table.racks.groups

    def _connect(self, peers: Sequence[int], lane: int, channels: int, in_flight: int) -> None:
        slots = _SLOTS[lane][:in_flight]
        streams = [_core.stream_of(slot, channel) for slot in slots for channel in range(channels)]
        rails = len(self._connector.rails)
        each = rails if rails > 1 else self.job.settings.connections if lane == _core.LANE_LARGE else 1
        self._connector.need(peers, [stream + n * _core.STREAMS for n in range(each) for stream in streams])

    # --- life ---

    @classmethod
    def world(cls, job: Job, core: _core.Communicator, boards: Sequence[int]) -> Group:
        """Make the group of all ranks, after the rendezvous, or of all members of a generation."""
        group = cls(job, core, job.members, boards, job.round * WORLDS)
        job.record_identity()
        let_stacks_be_read()
        if job.settings.records:
            announce(job.settings.records, _core.arena_fd())
        if job.agent is not None and job.is_member:
            job.agent.stragglers.watch(group.number, core)
        return group

    def children(
        self, rows: Sequence[Tuple[Optional[int], int, int, bool, List[int]]]
    ) -> Tuple[Optional[List[int]], Optional[int]]:
        """Return the members (ranks here, in their new order) of the child that this rank belongs to, and its number.

        ``rows[r]``: color, key, ``next_number``, ``deterministic`` and ``closed`` of rank r. Members are None where
        this rank's color is. The world takes the numbers of all children, on every rank alike; for a child of another
        group, whose first member has to ask for one (``fresh_number``), it is None.
        """
        self._let_go({world: row[4] for world, row in zip(self.ranks, rows)})
        first = max(row[2] for row in rows)
        colors = sorted({row[0] for row in rows if row[0] is not None})
        self.next_number = first + len(colors)
        own_color = rows[self.rank][0]
        if own_color is None:
            return None, None
        members = sorted((row[1], rank) for rank, row in enumerate(rows) if row[0] == own_color)
        whole = self.number % WORLDS == 0
        return [rank for _, rank in members], first + colors.index(own_color) if whole else None

    def fresh_number(self) -> int:
        """Return a number that no communicator of the job has or had. Asks the store."""
        return self._number_of(self.job.count_group())

    def _number_of(self, count: int) -> int:
        if count >= _SUBSETS:
            raise ResourceError(errno.EAGAIN, f"{self.who}: {count} groups have been made, and no more can be")
        return self.job.round * WORLDS + _SUBSETS + count

    def child(
        self,
        members: Sequence[int],
        number: int,
        core: _core.Communicator,
        boards: Sequence[int],
        tuned: Optional[Mapping[Collective, Lines]] = None,
        racks: Sequence[Sequence[int]] = (),
        deterministic: bool = False,
        wire: Optional[str] = None,
    ) -> Group:
        """Make the group of ``members`` (ranks here), whose cores have their boards at ``boards``.

        It chooses by ``tuned`` and is laid out by ``racks``; without, as this group if it has the same ranks. It is
        deterministic if this group is, too, and has this group's ``wire`` unless another is given.
        """
        if len(members) == self.size:
            tuned, racks = tuned or self._tuned, racks or self._racks
        ranks = [self.ranks[rank] for rank in members]
        fixed = deterministic or self.deterministic
        group = Group(self.job, core, ranks, boards, number, tuned, racks, fixed, wire or self.wire)
        self._children.append(group)
        return group

    def subset(self, ranks: Sequence[int], timeout: Optional[float]) -> Group:
        """Make the group of ``ranks`` (ranks here, in that order), which all call this. Blocking."""
        self.job.dropped.close_unused()
        members = [self.ranks[rank] for rank in ranks]
        core = Group.make_core(self.job, members.index(self.ranks[self.rank]), len(members), timeout)
        own = core.board_offset, self.closed(members)
        if self.job.identity.size == 1:
            number, told = self.next_number, [own]
            self.next_number += 1
        else:
            met, values = self.job.meet(members, json.dumps(own))
            number = self._number_of(met)
            told = [
                said_by(world, value, lambda said: (int(said[0]), [int(closed) for closed in said[1]]))
                for world, value in zip(members, values)
            ]
        self._let_go({world: closed for world, (_, closed) in zip(members, told)})
        return self.child(ranks, number, core, [board for board, _ in told])

    def closed(self, ranks: Sequence[int]) -> List[int]:
        """Return the numbers of the children with no other ``ranks`` (world's) that this rank has closed.

        Ranks tell one another whenever some of them make a group.
        """
        among = set(ranks)
        return [child.number for child in self._children if child._left and among.issuperset(child.ranks)]

    def _let_go(self, closed: Mapping[int, Collection[int]]) -> None:
        """Let go of children that all their ranks have closed, as the ranks (world's) that are here say.

        Nobody looks at their boards any more. Before all ranks have said so, a slower one may.
        """
        self._children = [
            child for child in self._children if not all(child.number in closed.get(rank, ()) for rank in child.ranks)
        ]

    @property
    def in_use(self) -> bool:
        """Whether operations are under way or prepared, or one of its children is not closed."""
        return self.core.in_use or not all(child._left for child in self._children)

    def late(self) -> Dict[int, float]:
        """Return the ranks here that come late to the operations of all ranks, with the seconds per operation."""
        agent = self.job.agent
        if agent is None:
            return {}
        late = agent.stragglers.late
        return {rank: late[world] for rank, world in enumerate(self.ranks) if world in late}

    @property
    def deserted(self) -> bool:
        """Whether nobody will touch this rank's board and buffers: all others have left as well, or have ended.

        Ends are not seen once the job is closed.
        """
        return bool(self.core.deserted()) and all(child.deserted for child in self._children)

    def end_stuck(self) -> None:
        """After ``close``, before the job is closed: see ``ddl._comm.stuck``."""
        for child in self._children:
            child.end_stuck()
        end_stuck(self.who, self.core)

    def close(self) -> None:
        """Leave: fail what is under way, close connections. Idempotent; the boards stay as long as this object."""
        self._left = True
        for child in self._children:
            child.close()
        self._connector.close()
        if self.job.agent is not None:
            self.job.agent.remove(self._member)
            self.job.agent.stragglers.forget(self.core)
        self.core.shutdown()
