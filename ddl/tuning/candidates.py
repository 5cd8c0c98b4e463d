"""What ``ddl tune`` tries: a grid of algorithms, piece sizes and numbers of pieces at once, around the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from ddl.errors import InvalidArgument
from ddl.plan import algorithms, build
from ddl.plan.canonical_tree import CANONICAL
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import KIB, MIB, Line, line_for, of_size, select

__all__ = ["MOST_SMALL", "Candidate", "candidates", "default_of", "worth_trying"]

_PIECES = (512 * KIB, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB)
_IN_FLIGHT = (2, 4)
#: The lane of small operations never waits behind a large one, so nothing that takes long may run on it.
MOST_SMALL = 256 * KIB
_LEAST_LARGE = 4 * KIB  #: for smaller operations, the other lane has to wake a thread, which takes too long


@dataclass(frozen=True)
class Candidate:
    """One way to run collectives of any size: a ``Line`` without ``max_bytes``."""

    algorithm: str
    piece_bytes: int
    in_flight: int
    small: bool

    def suits(self, collective: Collective, topology: Topology) -> bool:
        """Return whether the algorithm offers ``collective`` on ``topology``."""
        return _suits(collective, self.algorithm, topology)

    def line(self, collective: Collective, topology: Topology) -> Line:
        """Return a line that runs ``collective`` in this way at every size."""
        return line_for(collective, separate=topology.local_size < topology.size, **vars(self))


def default_of(collective: Collective, topology: Topology, nbytes: int) -> Candidate:
    """Return the candidate that ``select`` chooses for ``nbytes`` without a table."""
    return _as_candidate(of_size(select(collective, topology), nbytes))


def candidates(collectives: Sequence[Collective], topology: Topology) -> Tuple[Candidate, ...]:
    """Return all candidates for these collectives, the defaults first, so that they win if others are only as good.

    The algorithms of deterministic communicators are not among them: those do not use a table.
    """
    result: Dict[Candidate, None] = {}
    for collective in collectives:
        result.update((_as_candidate(line), None) for line in select(collective, topology))
    offers = {
        name: collective for collective in collectives for name in algorithms(collective) if name not in CANONICAL
    }
    for name in [name for name, collective in offers.items() if _suits(collective, name, topology)]:
        result[Candidate(name, 0, 1, True)] = None
        if any(name == candidate.algorithm and not candidate.small for candidate in list(result)):
            result.update((Candidate(name, piece, count, False), None) for piece in _PIECES for count in _IN_FLIGHT)
        else:
            result[Candidate(name, 2 * MIB, 2, False)] = None
    return tuple(result)


def worth_trying(
    collective: Collective, topology: Topology, nbytes: int, among: Sequence[Candidate]
) -> Tuple[List[int], int]:
    """Return the indices in ``among`` of the candidates to try at this size, and the index of the default.

    Of candidates that would do the same at this size, only the first is returned: for example, the piece size does not
    matter if the operation fits in one piece.
    """
    default = default_of(collective, topology, nbytes)
    first_of_way: Dict[Tuple[object, ...], int] = {_way(default, nbytes): among.index(default)}
    for number, candidate in enumerate(among):
        fits = nbytes <= MOST_SMALL if candidate.small else nbytes >= _LEAST_LARGE
        if fits and candidate.suits(collective, topology):
            first_of_way.setdefault(_way(candidate, nbytes), number)
    return sorted(first_of_way.values()), among.index(default)


def _way(candidate: Candidate, nbytes: int) -> Tuple[object, ...]:
    whole = candidate.small or nbytes <= candidate.piece_bytes
    return (
        candidate.algorithm,
        candidate.small,
        0 if whole else candidate.piece_bytes,
        0 if whole else candidate.in_flight,
    )


def _as_candidate(line: Line) -> Candidate:
    return Candidate(line.algorithm, line.piece_bytes, line.in_flight, line.small)


def _suits(collective: Collective, algorithm: str, topology: Topology) -> bool:
    if algorithm == "exchange" and topology.local_size == topology.size:
        return False  # it is the same as direct there
    try:
        build(collective, algorithm, topology, 0)
    except InvalidArgument:
        return False
    return True
