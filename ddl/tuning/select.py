"""Selects the algorithm for each size, from tables.

A *selection* is the list of lines for one collective, ascending by size. The first line whose ``max_bytes`` is large
enough serves an operation. All ranks must select the same. So a selection depends only on the topology, on settings
that all ranks share, and on the table that ``ddl tune`` measured on this cluster (table.py), which rank 0 sends to all
ranks at the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Dict, Mapping, Optional, Tuple

from ddl.errors import ConfigError
from ddl.plan import algorithms
from ddl.plan.ir import Collective
from ddl.plan.layout import REDUCING
from ddl.topology import Topology

__all__ = ["ANY", "MOST_IN_FLIGHT", "Line", "Lines", "line_for", "of_size", "rounded_once", "select"]

ANY = 2**63  #: the ``max_bytes`` of a last line
MOST_IN_FLIGHT = 4  #: pieces of one operation at once; the core has so many slots
#: Algorithms in which each partial sum has one owner. Only these may round messages.
_ONE_OWNER = frozenset({"exchange", "ring", "multiring"})
KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Line:
    """Operations up to ``max_bytes`` run ``algorithm``, in pieces of ``piece_bytes`` (0: in one piece).

    ``small``: they run on the lane of small operations, which never waits behind a large one. ``in_flight``: how many
    pieces of an operation run at once. ``coded``: messages of float32 may be compressed (DDL_WIRE).
    """

    max_bytes: int
    algorithm: str
    piece_bytes: int
    small: bool
    in_flight: int = 1
    coded: bool = False


Lines = Tuple[Line, ...]


def line_for(
    collective: Collective,
    *,
    separate: bool,
    algorithm: str,
    piece_bytes: int,
    in_flight: int,
    small: bool,
    max_bytes: int = ANY,
) -> Line:
    """Return a line that is ``coded`` where this is allowed; ``separate``: not all ranks share memory."""
    coded = separate and not small and collective is Collective.ALLREDUCE and algorithm in _ONE_OWNER
    return Line(max_bytes, algorithm, piece_bytes, small, in_flight, coded)


def of_size(lines: Lines, nbytes: int) -> Line:
    """Return the line that serves operations of ``nbytes``."""
    return next(line for line in lines if nbytes <= line.max_bytes)


def rounded_once(lines: Lines) -> Lines:
    """Return ``lines`` for messages with a quarter of the bytes: each value is rounded only twice in an all-reduce.

    A ring would round a partial sum at every hop. Pieces become four times as large, so that each takes as long on the
    wire as before.
    """
    return tuple(
        replace(line, algorithm="exchange", piece_bytes=4 * line.piece_bytes) if line.coded else line for line in lines
    )


def _two(small: str, limit: int, large: str, piece: int, in_flight: int = 2, coded: bool = False) -> Lines:
    return (Line(limit, small, 0, True), Line(ANY, large, piece, False, in_flight, coded and large in _ONE_OWNER))


#: All ranks share memory. Above the limit, the second meet of `direct` costs less than the copies of `eager`. The two
#: are equal at about 2 KiB for two ranks on two cores, at 16 KiB for four. With small pieces, copies of private buffers
#: stay in the second-level cache. Large pieces need fewer meets, which cost most with many ranks. The measurements are
#: in docs/performance.md.
_SHARED_BY_FEW: Dict[Collective, Lines] = {
    collective: _two("eager", 4 * KIB, "direct", 1 * MIB)
    for collective in Collective
    if collective not in (Collective.BARRIER, Collective.SEND, Collective.RECV)
}
# Nobody sums or writes into a peer's array. So larger pieces cost nothing, and there are fewer meets.
_SHARED_BY_FEW[Collective.ALLGATHER] = _two("eager", 4 * KIB, "direct", 4 * MIB)
_SHARED_BY_MANY: Dict[Collective, Lines] = {
    collective: _two("eager", 4 * KIB, "direct", 2 * MIB) for collective in _SHARED_BY_FEW
}
_MANY = 4  # ranks

#: What one meet of ranks that have a core each takes, and what a byte takes that one rank reads of another's. They were
#: fitted to all-reduces of 2 to 16 ranks on 16 cores (an Intel Xeon; docs/performance.md).
_MEET_S, _MEET_S_PER_RANK = 1.1e-6, 0.1e-6
_READ_S_PER_BYTE = 0.19e-9


def _eager_limit(topology: Topology) -> int:
    """Return up to how many bytes ranks that share memory use `eager` for all-reduces; a power of two.

    With `eager` each rank reads all of every other rank's data. With `direct` ranks meet once more, and the rest of
    what it does is the same for any number of them. Ranks that take turns on cores wait longer for one another.
    """
    largest = 4 * KIB
    if topology.cores < 1 or topology.size < 2:
        return largest
    meet = _MEET_S + _MEET_S_PER_RANK * topology.size
    equal = meet / (_READ_S_PER_BYTE * (topology.size - 1))
    return int(min(largest, 2 ** math.floor(math.log2(equal))))


#: Ranks on several hosts. Up to the limit, latency decides; above it, bandwidth. Two pieces at once keep both
#: directions of a link busy. Each piece has its own connection, and with more of them a system call moves fewer bytes.
_SEPARATE: Dict[Collective, Lines] = {
    # Pieces twice as large: a rank that also computes begins its next step some milliseconds late. Until then, the
    # other piece must have enough data to keep a link of 1 Gb/s busy.
    Collective.ALLREDUCE: _two("recursive_doubling", 64 * KIB, "multiring", 2 * MIB, coded=True),
    Collective.REDUCESCATTER: _two("recursive_doubling", 16 * KIB, "multiring", 1 * MIB),
    Collective.ALLGATHER: _two("recursive_doubling", 16 * KIB, "multiring", 1 * MIB),
    Collective.BROADCAST: _two("tree", 64 * KIB, "multiring", 1 * MIB),
    Collective.ALLTOALL: _two("ring", 16 * KIB, "ring", 4 * MIB),
    Collective.REDUCE: _two("tree", 64 * KIB, "multiring", 1 * MIB),
    Collective.GATHER: _two("tree", 16 * KIB, "tree", 4 * MIB),
    Collective.SCATTER: _two("tree", 16 * KIB, "tree", 4 * MIB),
}

#: Several hosts with several ranks each: a piece for each dimension and direction, so that while one piece crosses
#: hosts, others are reduced inside them. Small operations send one message per host: a message from every rank would
#: cost processors and the host's link several times as much.
_HYBRID: Dict[Collective, Lines] = {
    **{c: tuple(line if line.small else replace(line, in_flight=4) for line in s) for c, s in _SEPARATE.items()},
    Collective.ALLREDUCE: _two("leaders", 16 * KIB, "multiring", 2 * MIB, in_flight=4, coded=True),
}

_BARRIER = {True: "eager", False: "recursive_doubling"}


def _canonical(collective: Collective, topology: Topology) -> Lines:
    """Return the lines of a deterministic collective for three ranks or more. All lines give the same bits.

    The measurements are in docs/deterministic.md. Between hosts there are more rounds that wait, so pieces are larger.
    """
    small = "canonical_small" if collective is Collective.ALLREDUCE else "canonical"
    if topology.local_size == topology.size:
        return _two(small, 16 * KIB, "canonical", 1 * MIB)
    return _two(small, 32 * KIB, "canonical", (4 if topology.local_size == 1 else 2) * MIB)


def _table(topology: Topology) -> Dict[Collective, Lines]:
    if topology.local_size == topology.size:
        table = _SHARED_BY_FEW if topology.size < _MANY else _SHARED_BY_MANY
        small, large = table[Collective.ALLREDUCE]
        return {**table, Collective.ALLREDUCE: (replace(small, max_bytes=_eager_limit(topology)), large)}
    return _SEPARATE if topology.local_size == 1 else _HYBRID


def select(
    collective: Collective,
    topology: Topology,
    forced: str = "",
    tuned: Optional[Mapping[Collective, Lines]] = None,
    deterministic: bool = False,
) -> Lines:
    """Return the lines for ``collective`` on ``topology``.

    From the highest precedence to the lowest: ``deterministic`` adds along the canonical tree and rounds no message.
    ``forced`` (DDL_ALGORITHM) names an algorithm for every size, if it offers the collective. ``tuned`` are the lines
    that were measured on this cluster. The built-in lines come last. Raises ``ConfigError`` if ``forced`` is not the
    name of an algorithm.
    """
    if deterministic and collective in REDUCING:
        if topology.size > 2:
            return _canonical(collective, topology)
        # With two ranks there is a single addition, so every algorithm gives the same bits.
        return tuple(replace(line, coded=False) for line in select(collective, topology, forced, tuned))
    if forced and not any(forced in algorithms(known) for known in Collective):
        names = sorted({name for known in Collective for name in algorithms(known)})
        raise ConfigError(f"DDL_ALGORITHM={forced!r}: there is no such algorithm; use one of {', '.join(names)}")
    shared = topology.local_size == topology.size
    if collective is Collective.BARRIER:
        lines: Lines = (Line(ANY, _BARRIER[shared], 0, True),)
    else:
        lines = _table(topology)[collective]
    if forced and forced in algorithms(collective):
        return tuple(replace(line, algorithm=forced, coded=line.coded and forced in _ONE_OWNER) for line in lines)
    return tuned[collective] if tuned and collective in tuned else lines
