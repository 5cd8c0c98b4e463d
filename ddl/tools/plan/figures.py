"""The cost of a plan for a number of bytes, by rank and dimension, and the cost by the paper's formulas.

The paper: IBM PowerAI DDL (arXiv 1708.02188), whose multi-ring takes 2*sum(p_d - 1) messages and 2*S*(1 - 1/N) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Dict, Optional, Sequence, Tuple, Union

from ddl.plan import Collective, Plan
from ddl.plan.counts import Counts, count
from ddl.plan.verify import Proof
from ddl.topology import Topology
from ddl.tuning.select import Line

__all__ = ["PlanFigures", "RankFigures", "figures"]

#: How often data goes around the paper's rings: an all-reduce is a reduce-scatter and an all-gather.
_TURNS = {Collective.ALLREDUCE: 2, Collective.REDUCESCATTER: 1, Collective.ALLGATHER: 1}


@dataclass(frozen=True)
class RankFigures:
    """One rank's counts: with all ranks, and with the peers over each dimension."""

    rank: int
    steps: int
    rounds: Optional[int]  #: None where the plan was not verified
    everybody: Counts
    dimensions: Tuple[Counts, ...]


@dataclass(frozen=True)
class PlanFigures:
    """All that ``ddl plan`` prints about a collective."""

    collective: Collective
    topology: Topology
    root: int
    nbytes: int  #: of the longest buffer of a rank
    line: Line  #: which algorithm, and in which pieces
    chunks: int
    ranks: Tuple[RankFigures, ...]  #: of all ranks, or only one of a plan that was not verified
    verified: bool
    canonical: bool  #: verified to add up along the canonical tree

    @property
    def chunk_bytes(self) -> Fraction:
        """Bytes of one chunk, evenly cut."""
        # In all-to-all a rank has only those chunks that come from it, or go to it.
        blocks = self.topology.size if self.collective is Collective.ALLTOALL else self.chunks
        return Fraction(self.nbytes, blocks or 1)

    @property
    def pieces(self) -> int:
        """The approximate number of pieces of the buffer: the core rounds pieces to whole cache lines."""
        return max(1, -(-self.nbytes // self.line.piece_bytes)) if self.line.piece_bytes else 1

    @property
    def rounds(self) -> Optional[int]:
        """Rounds until the last rank is done."""
        known = [rank.rounds for rank in self.ranks if rank.rounds is not None]
        return max(known) if known else None

    @property
    def paper(self) -> Optional[Tuple[int, Fraction]]:
        """Messages and bytes of each rank by the paper's formulas; None if they do not cover the collective."""
        turns = _TURNS.get(self.collective)
        if turns is None:
            return None
        messages = turns * sum(dimension.size - 1 for dimension in self.topology.dimensions)
        return messages, turns * self.nbytes * (1 - Fraction(1, self.topology.size))

    def to_json(self) -> Dict[str, object]:
        """Return everything for scripts; sizes are in bytes."""
        paper = self.paper
        return {
            "collective": self.collective.name.lower(),
            "algorithm": self.line.algorithm,
            "mode": str(self.topology),
            "ranks": self.topology.size,
            "ranks_that_share_memory": self.topology.local_size,
            "root": self.root,
            "bytes": self.nbytes,
            "verified": self.verified,
            "canonical": self.canonical,
            "rounds": self.rounds,
            "chunks": self.chunks,
            "chunk_bytes": _number(self.chunk_bytes),
            "pieces": self.pieces,
            "pieces_at_once": self.line.in_flight,
            "paper": {"messages": paper[0], "bytes": _number(paper[1])} if paper else None,
            "counts": [self._rank_json(rank) for rank in self.ranks],
        }

    def _rank_json(self, rank: RankFigures) -> Dict[str, object]:
        names = [dimension.name for dimension in self.topology.dimensions]
        return {
            "rank": rank.rank,
            "steps": rank.steps,
            "rounds": rank.rounds,
            **self._counts_json(rank.everybody),
            "dimensions": {name: self._counts_json(counts) for name, counts in zip(names, rank.dimensions)},
        }

    def _counts_json(self, counts: Counts) -> Dict[str, object]:
        return {
            "messages": counts.messages,
            "empty_messages": counts.signals,
            "bytes_sent": _number(counts.chunks_sent * self.chunk_bytes),
            "bytes_received": _number(counts.chunks_received * self.chunk_bytes),
            "bytes_read": _number(counts.chunks_read * self.chunk_bytes),
            "bytes_written": _number(counts.chunks_written * self.chunk_bytes),
        }


def _number(value: Fraction) -> Union[int, float]:
    return value.numerator if value.denominator == 1 else float(value)


def figures(plans: Sequence[Plan], proof: Optional[Proof], topology: Topology, nbytes: int, line: Line) -> PlanFigures:
    """Count ``plans``: those of all ranks with their proof, or, without a proof, those of any ranks."""
    ranks = tuple(
        RankFigures(
            plan.rank,
            sum(len(channel) for channel in plan.channels),
            proof.rounds[plan.rank] if proof else None,
            count(plan),
            _by_dimension(plan, topology),
        )
        for plan in plans
    )
    lead = plans[0]
    proved = (proof is not None, proof is not None and proof.canonical)
    return PlanFigures(lead.collective, topology, lead.root, nbytes, line, lead.chunks, ranks, *proved)


def _by_dimension(plan: Plan, topology: Topology) -> Tuple[Counts, ...]:
    partners = {peer for channel in plan.channels for step in channel for peer in step.peers}
    over = {peer: topology.crossed(plan.rank, peer) for peer in partners}
    numbers = range(len(topology.dimensions))
    return tuple(count(plan, {peer for peer in partners if over[peer] == number}) for number in numbers)
