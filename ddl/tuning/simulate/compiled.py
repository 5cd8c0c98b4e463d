"""Compiles the plans of representatives for the simulator: peers become links, bytes become needs.

Everything that does not depend on a message's length is computed once, here: its link, its resources, and how many
symmetric ranks share each resource. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf
from typing import DefaultDict, Dict, List, Tuple

from ddl.plan import build
from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.topology import Topology
from ddl.tuning.simulate.cost import Machine, Port, Uses
from ddl.tuning.simulate.fluid import Fluid, Needs
from ddl.tuning.simulate.symmetry import Symmetry, orbit_size

__all__ = ["AWAIT", "NOTIFY", "RECEIVE", "SEND", "WORK", "Action", "Key", "Script", "compile_plans"]

SEND, RECEIVE, WORK, NOTIFY, AWAIT = range(5)
#: A link: channel, the representative that sends, the rank that receives.
Key = Tuple[int, int, int]
_NO_LINK: Key = (0, 0, 0)


@dataclass(frozen=True)
class Action:
    """One step. It sends, or reads and writes, ``share`` of the piece's bytes; each byte takes ``needs``."""

    kind: int
    share: float = 0.0
    needs: Needs = ()
    key: Key = _NO_LINK
    latency: float = 0.0
    dimension: int = 0  #: the outermost dimension in which the ranks of this step differ
    phase: int = 0
    peers: Tuple[int, ...] = ()  #: representatives


@dataclass(frozen=True)
class Script:
    """The actions of one representative, by channel, and what a second of its core takes.

    ``down`` and ``up``: what each byte takes between the rank's GPU and its host; nothing if arrays are on hosts.
    """

    channels: Tuple[Tuple[Action, ...], ...]
    overhead: Needs
    down: Needs = ()
    up: Needs = ()


def compile_plans(
    machine: Machine, topology: Topology, symmetry: Symmetry, algorithm: str, fluid: Fluid
) -> Dict[int, Script]:
    """Return the scripts of all representatives for an all-reduce. Adds the resources that they use to ``fluid``."""
    return _Compiler(machine, topology, symmetry, fluid).scripts(algorithm)


class _Compiler:
    def __init__(self, machine: Machine, topology: Topology, symmetry: Symmetry, fluid: Fluid) -> None:
        self._machine, self._topology, self._symmetry, self._fluid = machine, topology, symmetry, fluid
        self._numbers: Dict[Port, int] = {}
        self._factors: Dict[Port, int] = {}
        self._messages: Dict[Tuple[int, int, bool], Needs] = {}

    def scripts(self, algorithm: str) -> Dict[int, Script]:
        plans = {
            rank: build(Collective.ALLREDUCE, algorithm, self._topology, rank)
            for rank in self._symmetry.representatives
        }
        reduces = self._receives(plans)
        overhead = self._machine.core.overhead_s
        scripts = {}
        for rank, plan in plans.items():
            channels = []
            for number, channel in enumerate(plan.channels):
                sent: DefaultDict[Key, int] = defaultdict(int)
                actions = []
                for step in channel:
                    actions += self._actions(plan, number, step, sent, reduces)
                channels.append(tuple(actions))
            core = self._needs(((("core", 0, rank), 1.0),)) if overhead else ()
            copies = [self._staging(rank, direction) for direction in ("down", "up")]
            scripts[rank] = Script(tuple(channels), core, *copies)
        return scripts

    def _staging(self, rank: int, direction: str) -> Needs:
        return () if self._machine.gpus is None else self._needs(self._machine.staging(rank, direction))

    def _key(self, channel: int, sender: int, receiver: int) -> Key:
        """Return the link between two ranks, as the sender's representative has it."""
        return channel, self._symmetry.representative(sender), self._symmetry.image(sender, receiver)

    def _receives(self, plans: Dict[int, Plan]) -> Dict[Key, List[bool]]:
        """Return for each link which of its messages are reduced by the receiver."""
        reduces: DefaultDict[Key, List[bool]] = defaultdict(list)
        for rank, plan in plans.items():
            for number, channel in enumerate(plan.channels):
                for step in channel:
                    if step.kind in (Kind.RECV, Kind.RECV_REDUCE):
                        reduces[self._key(number, step.peers[0], rank)].append(step.kind is Kind.RECV_REDUCE)
        return reduces

    def _actions(
        self, plan: Plan, channel: int, step: Step, sent: DefaultDict[Key, int], reduces: Dict[Key, List[bool]]
    ) -> List[Action]:
        """Return the actions of a step; none if it takes no time."""
        rank = plan.rank
        share = step.count / plan.chunks if plan.chunks else 0.0
        if step.kind is Kind.NOTIFY:
            return [Action(NOTIFY, phase=step.phase)]
        if step.kind is Kind.AWAIT:
            peers = dict.fromkeys(map(self._symmetry.representative, step.peers))
            return [Action(AWAIT, phase=step.phase, peers=tuple(peers))]
        if step.kind in (Kind.RECV, Kind.RECV_REDUCE):
            return [Action(RECEIVE, key=self._key(channel, step.peers[0], rank))]
        if step.kind is Kind.SEND:
            peer = step.peers[0]
            key = self._key(channel, rank, peer)
            needs = self._message(rank, peer, reduces[key][sent[key]])
            sent[key] += 1
            latency = self._machine.latency(rank, peer)
            return [Action(SEND, share, needs, key, latency, self._dimension(rank, peer))]
        touched = share * _touched(step, plan.in_place)
        if not touched:
            return []
        dimension = max((self._dimension(rank, peer) for peer in step.peers), default=0)
        return [Action(WORK, touched, self._needs(self._machine.local(rank)), dimension=dimension)]

    def _dimension(self, a: int, b: int) -> int:
        """Return the outermost dimension in which two ranks differ."""
        differ = [x != y for x, y in zip(self._topology.coordinates(a), self._topology.coordinates(b))]
        return max((number for number, differs in enumerate(differ) if differs), default=0)

    def _message(self, rank: int, peer: int, reduces: bool) -> Needs:
        which = (rank, peer, reduces)
        if which not in self._messages:
            self._messages[which] = self._needs(self._machine.message(rank, peer, reduces=reduces))
        return self._messages[which]

    def _needs(self, uses: Uses) -> Needs:
        """Return the needs of ``uses``: of the resources of representatives, counted for all symmetric ranks."""
        needs = []
        for port, weight in uses:
            rate, burst, burst_rate = self._machine.capacity(port)
            if rate == inf:
                continue
            kind, level, _ = port
            members = self._machine.members(port)
            unit = (kind, level, self._symmetry.representative(members[0]) // len(members))
            if unit not in self._numbers:
                self._numbers[unit] = self._fluid.resource(rate, burst, burst_rate)
                self._factors[unit] = orbit_size(self._symmetry, self._machine.members(unit))
            needs.append((self._numbers[unit], weight * self._factors[unit]))
        return tuple(needs)


def _touched(step: Step, in_place: bool) -> int:
    """Return how often a direct step reads or writes each byte of its chunks. ``in_place``: INPUT is OUTPUT."""
    if step.kind is Kind.REDUCE_FROM:
        return len(step.peers) + 2
    if step.kind is Kind.COPY_TO:
        return len(step.peers)  # the source is in the cache: it was just reduced or received
    same = in_place and Buffer.SCRATCH not in (step.src, step.dst)
    return 0 if step.kind is Kind.COPY and same else 2
