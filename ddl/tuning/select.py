"""Which algorithm serves which size: a table, not ifs.

A *selection* is the list of lines for one collective, ascending by size; the first line that is large enough serves.
All ranks must select alike, so a selection depends on nothing but the topology, the settings that all ranks share, and
the table that ``ddl tune`` measured on this cluster (table.py), of which rank 0 tells all ranks at the start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, Mapping, Optional, Tuple

from ddl.errors import ConfigError
from ddl.plan import algorithms
from ddl.plan.ir import Collective
from ddl.plan.layout import REDUCING
from ddl.topology import Topology

__all__ = ["ANY", "MOST_IN_FLIGHT", "Line", "Lines", "line_for", "of_size", "rounded_once", "select"]

ANY = 2**63  #: the ``max_bytes`` of a last line
MOST_IN_FLIGHT = 4  #: pieces of one operation at once, as many as the core has slots for
#: Algorithms by which every partial sum has one owner: only there may messages be rounded.
_ONE_OWNER = frozenset({"exchange", "ring", "multiring"})
KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Line:
    """Operations up to ``max_bytes`` run ``algorithm``, in pieces of ``piece_bytes`` (0: in one piece).

    ``small``: on the lane of small operations, which never waits behind a large one. ``in_flight``: how many pieces of
    an operation run at once. ``coded``: messages of float32 may be written shorter (DDL_WIRE).
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
    """Return a line whose messages are coded if they may be; ``separate``: not all ranks share memory."""
    coded = separate and not small and collective is Collective.ALLREDUCE and algorithm in _ONE_OWNER
    return Line(max_bytes, algorithm, piece_bytes, small, in_flight, coded)


def of_size(lines: Lines, nbytes: int) -> Line:
    """Return the line that serves operations of ``nbytes``."""
    return next(line for line in lines if nbytes <= line.max_bytes)


def rounded_once(lines: Lines) -> Lines:
    """Return ``lines`` for messages of a quarter of the bytes, in which every value is rounded once in each half.

    A ring would round a partial sum at every hop. Pieces are four times as large, for as much time on the wire.
    """
    return tuple(
        replace(line, algorithm="exchange", piece_bytes=4 * line.piece_bytes) if line.coded else line for line in lines
    )


def _two(small: str, limit: int, large: str, piece: int, in_flight: int = 2, coded: bool = False) -> Lines:
    return (Line(limit, small, 0, True), Line(ANY, large, piece, False, in_flight, coded and large in _ONE_OWNER))


#: All ranks share memory. The limit is about where the second meet of `direct` costs less than the copies of `eager`:
#: 2 KiB for two ranks on two cores, 16 KiB for four. Small pieces let private buffers be staged in the second-level
#: cache, large ones mean fewer meets, which cost most where many ranks meet; docs/performance.md has the measurements.
_SHARED_BY_FEW: Dict[Collective, Lines] = {
    collective: _two("eager", 4 * KIB, "direct", 1 * MIB)
    for collective in Collective
    if collective not in (Collective.BARRIER, Collective.SEND, Collective.RECV)
}
_SHARED_BY_MANY: Dict[Collective, Lines] = {
    collective: _two("eager", 4 * KIB, "direct", 2 * MIB) for collective in _SHARED_BY_FEW
}
_MANY = 4  # ranks

#: Ranks on several hosts. Latency decides up to the limit, bytes beyond it. Two pieces keep both directions of a wire
#: busy; each has a connection of its own, and with more of them the processor moves fewer bytes per system call.
_SEPARATE: Dict[Collective, Lines] = {
    # Twice as large: beside a computation a rank comes to its next step some milliseconds late, and until then a wire
    # of 1 Gb/s lives on what the other piece has still to send.
    Collective.ALLREDUCE: _two("recursive_doubling", 64 * KIB, "multiring", 2 * MIB, coded=True),
    Collective.REDUCESCATTER: _two("recursive_doubling", 16 * KIB, "multiring", 1 * MIB),
    Collective.ALLGATHER: _two("recursive_doubling", 16 * KIB, "multiring", 1 * MIB),
    Collective.BROADCAST: _two("tree", 64 * KIB, "multiring", 1 * MIB),
    Collective.ALLTOALL: _two("ring", 16 * KIB, "ring", 4 * MIB),
    Collective.REDUCE: _two("tree", 64 * KIB, "multiring", 1 * MIB),
    Collective.GATHER: _two("tree", 16 * KIB, "tree", 4 * MIB),
    Collective.SCATTER: _two("tree", 16 * KIB, "tree", 4 * MIB),
}

#: Several hosts with several ranks each: one piece for each dimension and direction, so that while one crosses hosts
#: others are reduced inside them. Small ones are sent once per host: each rank's message would cost the processors and
#: the host's one wire as much again.
_HYBRID: Dict[Collective, Lines] = {
    **{c: tuple(line if line.small else replace(line, in_flight=4) for line in s) for c, s in _SEPARATE.items()},
    Collective.ALLREDUCE: _two("leaders", 16 * KIB, "multiring", 2 * MIB, in_flight=4, coded=True),
}

_BARRIER = {True: "eager", False: "recursive_doubling"}


def _canonical(collective: Collective, topology: Topology) -> Lines:
    """Return the lines of a reducing collective for three ranks or more; the bits do not depend on which one serves.

    docs/deterministic.md has the measurements; between hosts, larger pieces make up for more rounds that wait.
    """
    small = "canonical_small" if collective is Collective.ALLREDUCE else "canonical"
    if topology.local_size == topology.size:
        return _two(small, 16 * KIB, "canonical", 1 * MIB)
    return _two(small, 32 * KIB, "canonical", (4 if topology.local_size == 1 else 2) * MIB)


def _table(topology: Topology) -> Dict[Collective, Lines]:
    if topology.local_size == topology.size:
        return _SHARED_BY_FEW if topology.size < _MANY else _SHARED_BY_MANY
    return _SEPARATE if topology.local_size == 1 else _HYBRID


def select(
    collective: Collective,
    topology: Topology,
    forced: str = "",
    tuned: Optional[Mapping[Collective, Lines]] = None,
    deterministic: bool = False,
) -> Lines:
    """Return the lines for ``collective`` on ``topology``.

    ``forced`` (DDL_ALGORITHM) names an algorithm to use at every size wherever it offers the collective; it beats
    ``tuned``, the lines that were measured for this cluster, which beat the built-in ones. ``deterministic``, which
    beats all of them: sums go along the canonical tree and no message is rounded. Raises ``ConfigError`` if no
    collective knows ``forced``.
    """
    if deterministic and collective in REDUCING:
        if topology.size > 2:
            return _canonical(collective, topology)
        # Two ranks: there is one addition, whoever makes it.
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
