"""Which ranks do the same at the same time, so that one of them can be simulated for all.

A *symmetry* of a simulation is a way to exchange ranks that changes nothing: plans become one another's plans, and
units of the machine become units. Under a group of symmetries, in which only the identity leaves a rank where it is,
each rank has one *representative*; its plan, and what it meets, are the representative's under one certain symmetry.
If all ranks begin alike, everything a rank does happens when its representative does it: whoever simulates the
representatives, and counts for every resource how many of its users look alike, simulates all. That is exact, not an
estimate; ``tests/tuning/test_symmetry.py`` holds both against each other.

Shifts along the dimensions are symmetries of multi-ring, direct and eager, and shifts along all ranks of ring, as far
as whole units of the machine move onto units. Exclusive-or with a constant is one of recursive doubling, if ranks and
units are powers of two.
A straggler breaks all of them.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Protocol, Tuple

from ddl.topology import Topology
from ddl.tuning.cost import Machine

__all__ = ["Everybody", "Exchanges", "Shifts", "Symmetry", "alike", "symmetry_of"]

#: Algorithms whose plans speak of neighbours along dimensions, or of all ranks of a host, and of nobody else.
_ALONG_DIMENSIONS = frozenset({"multiring", "direct", "eager"})


class Symmetry(Protocol):
    """A group of symmetries, by its representatives. ``exact`` is False where it is only assumed."""

    exact: bool

    @property
    def representatives(self) -> Tuple[int, ...]:
        """Return one rank for each class of ranks that are alike, ascending."""
        ...

    def representative(self, rank: int) -> int:
        """Return the representative of ``rank``."""
        ...

    def image(self, rank: int, other: int) -> int:
        """Return where ``other`` goes under the symmetry that takes ``rank`` to its representative."""
        ...


class Everybody:
    """No symmetry: every rank stands for itself."""

    exact = True

    def __init__(self, size: int) -> None:
        self.representatives = tuple(range(size))

    def representative(self, rank: int) -> int:
        return rank

    def image(self, rank: int, other: int) -> int:
        return other


class Shifts:
    """Shifts along the dimensions, in steps of ``periods``: 1 where all ranks of a ring are alike."""

    exact = True

    def __init__(self, topology: Topology, machine: Machine) -> None:
        self._sizes = tuple(dimension.size for dimension in topology.dimensions)
        self._strides = tuple(prod(self._sizes[:i]) for i in range(len(self._sizes)))
        self._periods = tuple(
            _period(size, stride, machine.spans[:-1]) for size, stride in zip(self._sizes, self._strides)
        )

    @property
    def representatives(self) -> Tuple[int, ...]:
        corner = product(*(range(period) for period in reversed(self._periods)))
        return tuple(sum(c * s for c, s in zip(reversed(point), self._strides)) for point in corner)

    def representative(self, rank: int) -> int:
        return self.image(rank, rank)

    def image(self, rank: int, other: int) -> int:
        moved = 0
        for size, stride, period in zip(self._sizes, self._strides, self._periods):
            here = rank // stride % size
            moved += (other // stride - here + here % period) % size * stride
        return moved


def _period(size: int, stride: int, spans: Tuple[int, ...]) -> int:
    """Return the least shift along a dimension that takes all units (runs of ``spans`` ranks) to units."""
    period = 1
    for span in spans:
        if span <= stride and stride % span == 0:
            continue  # whole units move
        if span >= stride * size and span % (stride * size) == 0:
            continue  # all happens inside of each unit
        if span % stride or stride * size % span:
            return size
        period = max(period, span // stride)
    return period


class Exchanges:
    """Exclusive-or with any number: recursive doubling.

    Exact if the numbers of ranks and of each unit's ranks are powers of two. Otherwise an estimate: every rank is taken
    to have what the first one has, a partner beyond the greatest power of two, and hosts to be filled by neighbours.
    """

    def __init__(self, size: int, machine: Machine) -> None:
        self._power = 1 << (size.bit_length() - 1)
        self.representatives: Tuple[int, ...] = (0,) if self._power == size else (0, self._power)
        self.exact = all(span & (span - 1) == 0 for span in (size, *machine.spans))

    def representative(self, rank: int) -> int:
        return rank & self._power if len(self.representatives) > 1 else 0

    def image(self, rank: int, other: int) -> int:
        return other ^ rank ^ self.representative(rank)


def symmetry_of(algorithm: str, topology: Topology, machine: Machine, most: int) -> Symmetry:
    """Return the symmetry of all-reduces by ``algorithm``; an assumed one only beyond ``most`` ranks.

    Ranks must be in the order of their positions.
    """
    if algorithm in _ALONG_DIMENSIONS:
        return Shifts(topology, machine)
    if algorithm == "ring":  # one around all ranks, whatever the dimensions
        return Shifts(Topology.flat(topology.size), machine)
    if algorithm == "recursive_doubling":
        exchanges = Exchanges(topology.size, machine)
        if exchanges.exact or topology.size > most:
            return exchanges
    return Everybody(topology.size)


def alike(symmetry: Symmetry, members: range) -> int:
    """Return how many of the ranks of a unit are alike: so many flows use its port where one is simulated."""
    first = symmetry.representative(members[0])
    return sum(symmetry.representative(rank) == first for rank in members)
