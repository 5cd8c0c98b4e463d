"""Determines which ranks do the same at the same time, so that one of them can be simulated for all.

A *symmetry* is a permutation of the ranks that changes nothing: it maps plans to plans, and units of the machine to
units. Take a group of symmetries in which only the identity leaves a rank where it is. Then each rank has one
*representative*, and exactly one symmetry maps the rank to it. If all ranks begin at the same time, a rank does
everything when its representative does. So it is enough to simulate the representatives, and to count for every
resource how many symmetric ranks use it. The result is exact; ``tests/tuning/test_symmetry.py`` compares it with a
simulation of all ranks.

Shifts along the dimensions are symmetries of multi-ring, direct and eager, and shifts along all ranks are symmetries of
ring, if they move whole units of the machine to units. For recursive doubling, exclusive-or with a constant is a
symmetry if ranks and units are powers of two; for leaders, exclusive-or of the hosts' numbers. With a straggler, there
is no symmetry.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Protocol, Tuple

from ddl.topology import Topology
from ddl.tuning.simulate.cost import Machine

__all__ = ["NoSymmetry", "Exchanges", "Shifts", "Symmetry", "orbit_size", "symmetry_of"]

#: Algorithms in which a rank only deals with neighbours along dimensions, or with all ranks of its host.
_ALONG_DIMENSIONS = frozenset({"multiring", "direct", "eager"})


class Symmetry(Protocol):
    """A group of symmetries, by its representatives. ``exact`` is False if it is only assumed."""

    exact: bool

    @property
    def representatives(self) -> Tuple[int, ...]:
        """Return one rank of each class of symmetric ranks, ascending."""
        ...

    def representative(self, rank: int) -> int:
        """Return the representative of ``rank``."""
        ...

    def image(self, rank: int, other: int) -> int:
        """Return where ``other`` goes under the symmetry that takes ``rank`` to its representative."""
        ...


class NoSymmetry:
    """No symmetry: every rank stands for itself."""

    exact = True

    def __init__(self, size: int) -> None:
        self.representatives = tuple(range(size))

    def representative(self, rank: int) -> int:
        return rank

    def image(self, rank: int, other: int) -> int:
        return other


class Shifts:
    """Shifts along the dimensions, by multiples of ``periods``: 1 if all ranks of a ring are symmetric."""

    exact = True

    def __init__(self, topology: Topology, machine: Machine) -> None:
        self._sizes = tuple(dimension.size for dimension in topology.dimensions)
        self._strides = tuple(prod(self._sizes[:i]) for i in range(len(self._sizes)))
        self._periods = tuple(
            _period(size, stride, machine.unit_spans) for size, stride in zip(self._sizes, self._strides)
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
            continue  # the shift stays inside each unit
        if span % stride or stride * size % span:
            return size
        period = max(period, span // stride)
    return period


class Exchanges:
    """Exclusive-or with any number, of ranks for recursive doubling, of hosts of ``unit`` ranks for leaders.

    It is exact if their number, and their number in each unit of the machine, are powers of two. Otherwise it is an
    estimate: it assumes that each has a partner beyond the greatest power of two, as the first one has, and that
    neighbours fill the units of the machine.
    """

    def __init__(self, size: int, machine: Machine, unit: int = 1) -> None:
        count = size // unit
        self._unit = unit
        self._power = 1 << (count.bit_length() - 1)
        firsts = (0,) if self._power == count else (0, self._power)
        self.representatives: Tuple[int, ...] = tuple(first * unit + index for first in firsts for index in range(unit))
        self._beyond = self._power if len(firsts) > 1 else 0
        units = (*machine.unit_spans, machine.size)
        spans = [span for span in (size, *units) if span > unit]
        inside = all(unit % span == 0 for span in units if span <= unit)
        self.exact = inside and all(span % unit == 0 and _power_of_two(span // unit) for span in spans)

    def representative(self, rank: int) -> int:
        host, index = divmod(rank, self._unit)
        return (host & self._beyond) * self._unit + index

    def image(self, rank: int, other: int) -> int:
        block = rank // self._unit
        host, index = divmod(other, self._unit)
        return (host ^ block ^ (block & self._beyond)) * self._unit + index


def _power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def symmetry_of(algorithm: str, topology: Topology, machine: Machine, most: int) -> Symmetry:
    """Return the symmetry of all-reduces by ``algorithm``; one that is not exact only for more than ``most`` ranks.

    Ranks must be in the order of their positions.
    """
    if algorithm in _ALONG_DIMENSIONS:
        return Shifts(topology, machine)
    if algorithm == "ring":  # one around all ranks, whatever the dimensions
        return Shifts(Topology.flat(topology.size), machine)
    if algorithm in ("recursive_doubling", "leaders"):
        exchanges = Exchanges(topology.size, machine, topology.local_size if algorithm == "leaders" else 1)
        if exchanges.exact or topology.size > most:
            return exchanges
    return NoSymmetry(topology.size)


def orbit_size(symmetry: Symmetry, members: range) -> int:
    """Return how many ranks of a unit are symmetric: so many flows use its port for each simulated one."""
    first = symmetry.representative(members[0])
    return sum(symmetry.representative(rank) == first for rank in members)
