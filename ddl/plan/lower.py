"""Turns a plan into the table that the native core runs: chunk ids become block numbers.

The core does not know chunks. For every buffer it knows a *table*: to which *part* each block of the buffer belongs. An
operation supplies the length of each part. Where one buffer is cut evenly, and in all-to-all, a part is a chunk; where
every rank has one block, a part is a rank.
"""

from __future__ import annotations

from typing import Dict, Iterator, List, Set, Tuple

from ddl import _core
from ddl.plan import build
from ddl.plan.collectives import TRAITS, Content
from ddl.plan.ir import Buffer, Collective, Kind, Plan, Step
from ddl.plan.layout import SPLIT
from ddl.plan.pull import pull_of
from ddl.topology import Topology

__all__ = ["lower", "one_message"]

_DIRECT = (Kind.REDUCE_FROM, Kind.COPY_FROM, Kind.COPY_TO)
_READS_OWN = (Kind.SEND, Kind.RECV_REDUCE, Kind.REDUCE_FROM, Kind.COPY_TO, Kind.COPY)
_WRITES_OWN = (Kind.RECV, Kind.RECV_REDUCE, Kind.REDUCE_FROM, Kind.COPY_FROM, Kind.COPY)

Blocks = List[int]


def _chunks_in(plan: Plan, buffer: Buffer) -> Tuple[int, ...]:
    return (plan.input, plan.output, plan.scratch)[buffer]


def _far_buffer(step: Step) -> Buffer:
    """Return which buffer of its peers a direct step touches."""
    return step.dst if step.kind is Kind.COPY_TO else step.src


class _Lowering:
    """Lowers one rank's plan. The plans of the ranks that share memory with it say where their blocks lie."""

    def __init__(self, plan: Plan, topology: Topology) -> None:
        self.plan = plan
        near = topology.local_group(plan.rank) if plan.size > 1 else ()
        self.neighbours: Dict[int, Plan] = {
            rank: build(plan.collective, plan.algorithm, topology, rank, plan.root)
            for rank in near
            if rank != plan.rank
        }
        self.near = {plan.rank: plan, **self.neighbours}
        self.split = plan.collective in SPLIT
        self.part_of_chunk = self._parts(topology)
        self.tables: List[List[int]] = []
        self.table_numbers: Dict[Tuple[int, ...], int] = {}
        self.block_numbers: Dict[Tuple[int, ...], Dict[int, int]] = {}

    def _parts(self, topology: Topology) -> Dict[int, int]:
        """Return the part to which each chunk belongs."""
        plan = self.plan
        traits = TRAITS[plan.collective]
        if Content.BLOCK not in (traits.input.content, traits.output.content):
            return {chunk: chunk for chunk in range(plan.chunks)}
        root = build(plan.collective, plan.algorithm, topology, plan.root, plan.root)
        by_rank = max((root.input, root.output), key=len)
        return {chunk: rank for rank, chunk in enumerate(by_rank)}

    def table(self, chunks: Tuple[int, ...]) -> int:
        if chunks not in self.table_numbers:
            self.table_numbers[chunks] = len(self.tables)
            self.tables.append([self.part_of_chunk[chunk] for chunk in chunks])
            self.block_numbers[chunks] = {chunk: block for block, chunk in enumerate(chunks)}
        return self.table_numbers[chunks]

    def blocks(self, chunks: Tuple[int, ...], step: Step) -> Blocks:
        self.table(chunks)
        numbers = self.block_numbers[chunks]
        return [numbers[chunk] for chunk in range(step.first, step.first + step.count)]

    def channel(self, number: int) -> List[_core.Step]:
        """Lower the steps of a channel. A SEND of finished values is ``final`` too: they must not be rounded again."""
        finished: Set[int] = set()
        lowered = []
        pull = pull_of(self.plan.rank, self.near)
        for step in self.plan.channels[number]:
            chunks = range(step.first, step.first + step.count)
            if step.final or step.kind is Kind.RECV:
                finished.update(chunks)
            final = step.final or (step.kind is Kind.SEND and finished.issuperset(chunks))
            if pull is not None and step == pull[0]:
                lowered.append(self.step(pull[1], final, True))
            else:
                gives = step.kind is Kind.COPY_TO and pull_of(step.peers[0], self.near) is not None
                lowered.append(self.step(step, final, gives))
        return lowered

    def step(self, step: Step, final: bool, pull: bool) -> _core.Step:
        own = step.dst if step.onto else step.src
        peers = sorted(step.peers)
        remotes = []
        if step.kind in _DIRECT:
            for peer in peers:
                chunks = _chunks_in(self.neighbours[peer], _far_buffer(step))
                remotes.append(_core.Remote(self.table(chunks), self.blocks(chunks, step)))
        return _core.Step(
            kind=step.kind,
            src=step.src,
            dst=step.dst,
            final=final,
            onto=step.onto,
            after_sends=step.after_sends,
            phase=step.phase,
            peers=peers,
            src_blocks=self.blocks(_chunks_in(self.plan, own), step) if step.kind in _READS_OWN else [],
            dst_blocks=self.blocks(_chunks_in(self.plan, step.dst), step) if step.kind in _WRITES_OWN else [],
            remotes=remotes,
            pull=pull,
        )

    def _touching(self) -> Iterator[Step]:
        """Yield the steps of neighbours that touch this rank's memory."""
        for plan in self.neighbours.values():
            for channel in plan.channels:
                yield from (step for step in channel if step.kind in _DIRECT and self.plan.rank in step.peers)

    def exposed(self) -> List[List[bool]]:
        """Return for each of this rank's buffers which blocks its neighbours touch, and must be able to reach."""
        touched = {
            (_far_buffer(step), chunk)
            for step in self._touching()
            for chunk in range(step.first, step.first + step.count)
        }
        return [[(buffer, chunk) in touched for chunk in _chunks_in(self.plan, buffer)] for buffer in Buffer]

    def only_by(self, kind: Kind) -> List[bool]:
        """Return which buffers neighbours touch by steps of that kind only, or not at all."""
        otherwise = {_far_buffer(step) for step in self._touching() if step.kind is not kind}
        return [buffer not in otherwise for buffer in Buffer]


def lower(plan: Plan, topology: Topology, codec: int = 0) -> _core.Plan:
    """Return ``plan`` as the native core runs it. ``topology`` is the topology for which it was built.

    ``codec``: how its messages encode float32 (csrc/reduce/wire_codec.h). It is allowed only if each partial sum has
    one owner, which rounds it before it sends it on: only then do all ranks end with the same bits.
    """
    lowering = _Lowering(plan, topology)
    own_tables = [lowering.table(_chunks_in(plan, buffer)) for buffer in Buffer]
    channels = [lowering.channel(number) for number in range(len(plan.channels))]
    return _core.Plan(
        rank=plan.rank,
        size=plan.size,
        split=lowering.split or plan.collective is Collective.BARRIER,
        parts=max(1, len(set(lowering.part_of_chunk.values()))),
        tables=lowering.tables,
        own_tables=own_tables,
        exposed=lowering.exposed(),
        channels=channels,
        wire=codec,
        only_copied=lowering.only_by(Kind.COPY_FROM),  # so they need not lie in shared memory
        only_written=lowering.only_by(Kind.COPY_TO),
    )


def one_message(collective: Collective, rank: int, size: int, peers: List[int]) -> _core.Plan:
    """Return the plan of ``send`` or ``recv``: a message of one block to the peer, or from one of the ``peers``."""
    sends = collective is Collective.SEND
    kind, buffer = (Kind.SEND, Buffer.INPUT) if sends else (Kind.RECV, Buffer.OUTPUT)
    step = _core.Step(
        kind=kind,
        src=buffer,
        dst=buffer,
        final=False,
        onto=False,
        after_sends=False,
        phase=0,
        peers=peers,
        src_blocks=[0] if sends else [],
        dst_blocks=[] if sends else [0],
        remotes=[],
    )
    return _core.Plan(
        rank=rank,
        size=size,
        split=True,
        parts=1,
        tables=[[0], []],
        own_tables=[0, 1, 1] if sends else [1, 0, 1],
        exposed=[[False], [], []] if sends else [[], [False], []],
        channels=[[step]],
    )
