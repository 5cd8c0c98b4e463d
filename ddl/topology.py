"""Topology: how the ranks of a job lie in the machines, as dimensions with the innermost first.

``4x8x2`` is four ranks per host, eight hosts per rack, two racks. The map from rank to coordinates is explicit
(``order``), never assumed: rank 5 may sit anywhere. Planners read nothing else about the machine. Plain immutable
data without I/O; a topology is hashable, so that plans can be cached by it. The mode strings are those of IBM's
PowerAI DDL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from typing import Dict, Optional, Sequence, Tuple

from ddl.errors import ConfigError, InvalidArgument

__all__ = ["Dimension", "Link", "Topology"]

#: What ``parse`` calls the dimensions of a mode string, innermost first.
_NAMES = ("ranks", "hosts", "racks", "aisles")
_SIZES = re.compile(r"[0-9]+(?:[xX][0-9]+)*")
#: A longer digit string, or more ranks, is a typing error; it is refused before memory is taken for it.
_LARGEST_SIZE_DIGITS = 9
_MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class Link:
    """What connects two neighbours of a dimension: the alpha-beta model's two numbers, and how many such links."""

    latency_s: float
    bandwidth_bytes_per_s: float
    rails: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < inf and self.bandwidth_bytes_per_s > 0 and self.rails >= 1):
            raise ConfigError(
                f"{self}: latency must be >= 0 and finite, bandwidth > 0 and rails >= 1; correct the link"
            )


@dataclass(frozen=True)
class Dimension:
    """One level of the machine: ``size`` neighbours that are reached over ``link``, or that share memory."""

    name: str
    size: int
    shared: bool = False
    link: Optional[Link] = None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"dimension {self.name!r} has size {self.size}; a size must be at least 1")


@dataclass(frozen=True)
class Topology:
    """Dimensions, innermost first, and which rank sits at each position.

    ``order[position] = rank`` where ``position = c1 + p1*(c2 + p2*(c3 + ...))`` for coordinates ``c`` and sizes
    ``p``.

    ``late``: ranks that are always late, ascending. Where all ranks share memory, the others do their work in large
    all-reduces.

    ``cores``: how many cores each rank has for itself, at least; 0: ranks take turns on cores, or it is not known.
    Which algorithm is used may depend on it, but no plan does.
    """

    dimensions: Tuple[Dimension, ...]
    order: Tuple[int, ...]
    late: Tuple[int, ...] = ()
    cores: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        text = str(self)
        expected = prod(d.size for d in self.dimensions)
        if not self.dimensions:
            raise ConfigError("a topology needs at least one dimension; use Topology.flat(size) for a plain one")
        if expected != len(self.order):
            raise ConfigError(
                f"topology {text}: its sizes multiply to {expected}, but {len(self.order)} ranks were given; "
                "make the product equal to the number of ranks"
            )
        if sorted(self.order) != list(range(expected)):
            raise ConfigError(
                f"topology {text}: order {self.order} is not a permutation of 0..{expected - 1}; "
                "name every rank exactly once"
            )
        flags = [d.shared for d in self.dimensions]
        if flags != sorted(flags, reverse=True):
            raise ConfigError(
                f"topology {text}: which dimensions share memory, innermost first, is {flags}; "
                "those that do must be the innermost"
            )
        if self.late and not (set(self.late) < set(self.order) and list(self.late) == sorted(set(self.late))):
            raise ConfigError(
                f"topology {text}: the late ranks are to be {self.late}; name some of 0..{expected - 1}, but not all, "
                "in ascending order"
            )

    @classmethod
    def flat(cls, size: int, *, shared: bool = False) -> Topology:
        """One dimension of ``size`` ranks in rank order."""
        return cls((Dimension("ranks", size, shared),), tuple(range(size)))

    @classmethod
    def parse(cls, text: str, *, shared: int = 0, size: Optional[int] = None) -> Topology:
        """Read the sizes of a mode string such as ``"4x2x2"``, innermost first, in rank order.

        The first ``shared`` dimensions share memory. ``size``, where given, is the number of ranks that the sizes
        must multiply to. Raises ``ConfigError``.
        """
        if not _SIZES.fullmatch(text):
            raise ConfigError(f"mode {text!r}: not sizes joined by 'x'; write for example 4x2x2")
        numbers = re.split("[xX]", text)
        for number in numbers:
            if len(number) > _LARGEST_SIZE_DIGITS or int(number) < 1:
                raise ConfigError(f"mode {text!r}: {number} is not a possible size; give sizes of at least 1")
        sizes = [int(number) for number in numbers]
        if not 0 <= shared <= len(sizes):
            raise ConfigError(f"mode {text!r}: {shared} shared dimensions asked for, but it has {len(sizes)}")
        given = prod(sizes)
        if size is not None and given != size:
            raise ConfigError(
                f"mode {text!r}: its sizes multiply to {given}, but the job has {size} ranks; "
                "make the product equal to the number of ranks"
            )
        if given > _MOST_RANKS:
            raise ConfigError(f"mode {text!r}: its sizes multiply to {given}; more than {_MOST_RANKS} are refused")
        names = _NAMES + tuple(f"dimension{i + 1}" for i in range(len(_NAMES), len(sizes)))
        dimensions = tuple(Dimension(names[i], p, i < shared) for i, p in enumerate(sizes))
        return cls(dimensions, tuple(range(given)))

    def with_order(self, order: Sequence[int]) -> Topology:
        """Return the same dimensions with other ranks at the positions."""
        return replace(self, order=tuple(order))

    def with_late(self, ranks: Sequence[int]) -> Topology:
        """Return the same topology, in which these ranks come late."""
        return replace(self, late=tuple(sorted(ranks)))

    def with_cores(self, cores: int) -> Topology:
        """Return the same topology, in which each rank has so many cores for itself."""
        return replace(self, cores=cores)

    def in_racks(self, racks: Sequence[Sequence[int]]) -> Topology:
        """Return the outermost dimension cut in two, neighbours in a rack and racks; ranks are re-ordered to fit.

        ``racks``: coordinates along that dimension (hosts, say), each of them once, as many in each rack. Raises
        ``ConfigError``.
        """
        outer = self.dimensions[-1]
        if sorted(host for rack in racks for host in rack) != list(range(outer.size)) or len(set(map(len, racks))) > 1:
            raise ConfigError(
                f"topology {self}: racks {racks} are no equal parts of 0..{outer.size - 1}; name every one of its "
                f"{outer.size} {outer.name} exactly once, as many in each rack"
            )
        block = self.size // outer.size
        order = [rank for rack in racks for host in rack for rank in self.order[host * block : (host + 1) * block]]
        cut = (replace(outer, size=len(racks[0])), Dimension("racks", len(racks)))
        return replace(self, dimensions=(*self.dimensions[:-1], *cut), order=tuple(order))

    def __str__(self) -> str:
        return "x".join(str(d.size) for d in self.dimensions)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.order)

    @cached_property
    def local_size(self) -> int:
        """Number of ranks that share memory with one another: the product of the shared dimensions."""
        return prod(d.size for d in self.dimensions if d.shared)

    @cached_property
    def _position_of(self) -> Dict[int, int]:
        return {rank: position for position, rank in enumerate(self.order)}

    @cached_property
    def _strides(self) -> Tuple[int, ...]:
        """How many positions one step along each dimension is."""
        return tuple(prod(d.size for d in self.dimensions[:i]) for i in range(len(self.dimensions)))

    def position(self, rank: int) -> int:
        """Return where ``rank`` sits: the inverse of ``order``. Raises ``InvalidArgument``."""
        try:
            return self._position_of[rank]
        except KeyError:
            raise InvalidArgument(
                f"rank {rank} is not in topology {self}, which has {self.size} ranks; give 0..{self.size - 1}"
            ) from None

    def coordinates(self, rank: int) -> Tuple[int, ...]:
        """Return the coordinates of ``rank``, innermost first. Raises ``InvalidArgument``."""
        position = self.position(rank)
        return tuple(position // stride % d.size for stride, d in zip(self._strides, self.dimensions))

    def rank_at(self, coordinates: Sequence[int]) -> int:
        """Return the rank at ``coordinates``, innermost first. Raises ``InvalidArgument``."""
        inside = len(coordinates) == len(self.dimensions) and all(
            0 <= c < d.size for c, d in zip(coordinates, self.dimensions)
        )
        if not inside:
            raise InvalidArgument(f"coordinates {tuple(coordinates)} are not inside topology {self}")
        return self.order[sum(c * stride for c, stride in zip(coordinates, self._strides))]

    def group(self, rank: int, dimension: int) -> Tuple[int, ...]:
        """Return the ranks that differ from ``rank`` only along ``dimension`` (an index), in coordinate order."""
        if not 0 <= dimension < len(self.dimensions):
            raise InvalidArgument(f"topology {self} has no dimension {dimension}; it has {len(self.dimensions)}")
        stride, size = self._strides[dimension], self.dimensions[dimension].size
        position = self.position(rank)
        start = position - position // stride % size * stride
        return self.order[start : start + stride * size : stride]

    def crossed(self, rank: int, other: int) -> int:
        """Return the outermost dimension (an index) in which two different ranks differ: whose link joins them."""
        pairs = zip(self.coordinates(rank), self.coordinates(other))
        differing = [dimension for dimension, (own, theirs) in enumerate(pairs) if own != theirs]
        if not differing:
            raise InvalidArgument(f"topology {self}: no link joins rank {rank} to itself; give two different ranks")
        return differing[-1]

    def local_group(self, rank: int) -> Tuple[int, ...]:
        """Return the ranks that share memory with ``rank`` and itself, in order of position."""
        start = self.position(rank) // self.local_size * self.local_size
        return self.order[start : start + self.local_size]
