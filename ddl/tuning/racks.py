"""Infers racks from the rates between pairs of hosts. Pure.

A rack is a group of hosts behind a common switch whose uplink carries less than the hosts together. A single message
gets the full rate even through a narrow uplink. So pairs of hosts are measured while all other hosts send, too
(ddl/tuning/measure/find_racks.py), in several tournaments that are shuffled differently. The slowest figure of a pair
counts: in one of the tournaments, few other pairs may have used the uplink at the same time.

Hosts of one rack have similar rates to all other hosts: this gives guesses. Their rates are higher inside the rack than
across: this decides whether a guess is right. No racks are better than wrong ones. Racks of equal size and speed are
inferred exactly or not at all. Of racks that differ, none is split, but several may be joined.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ddl.text.units import bytes_text, duration
from ddl.tuning.tournament import Rounds, tournament

__all__ = ["FEWEST_HOSTS", "Racks", "RackGuess", "suspect", "tournaments"]

FEWEST_HOSTS = 4  #: two racks of two
#: The median rate inside racks must be at least so many times that across them. An uplink that carries half of what its
#: hosts send shows more than this, and noise less.
_CONTRAST = 1.5
#: The median rates inside the racks must differ by less than this factor.
_ALIKE = 2.0

Groups = Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class RackGuess:
    """What looks like racks: groups of hosts, and the median rates of pairs, each way, while all hosts send."""

    groups: Groups  #: hosts by number, as in ``TunedCluster.hosts``, from 0
    within_bytes_per_s: float
    between_bytes_per_s: float

    def text(self, hosts: Sequence[str]) -> str:
        """Return the racks and their rates as text; ``hosts`` are those of the ``TunedCluster``."""
        names = [host.rpartition(":")[0] for host in hosts]
        racks = " | ".join(" ".join(names[host] for host in group) for group in self.groups)
        within, between = bytes_text(int(self.within_bytes_per_s)), bytes_text(int(self.between_bytes_per_s))
        return f"racks {racks}: {within}/s within and {between}/s between them while all hosts send at once"


@dataclass(frozen=True)
class Racks(RackGuess):
    """Racks that make an all-reduce of ``nbytes`` faster: its seconds with them and, in the same rounds, without."""

    nbytes: int
    seconds: float
    default_seconds: float

    def text(self, hosts: Sequence[str]) -> str:
        """As above, with the times of the all-reduce."""
        with_racks, default = duration(self.seconds), duration(self.default_seconds)
        return f"{super().text(hosts)}; allreduce of {bytes_text(self.nbytes)} {with_racks}, without racks {default}"


def tournaments(hosts: int, count: int) -> List[Rounds]:
    """Return ``count`` tournaments of hosts 0, 1, ..., each shuffled differently. All calls return the same."""
    shuffle = np.random.RandomState(0)  # numpy promises never to change this stream of numbers
    return [tournament(shuffle.permutation(hosts).tolist()) for _ in range(count)]


def suspect(rates: np.ndarray) -> Optional[RackGuess]:
    """Return the racks that follow from rates under load, or None. There are two racks or more, of the same size >= 2.

    ``rates``: (hosts, hosts), symmetric, bytes per second: the rate of each pair. The diagonal is not read.
    """
    for groups in _guesses(rates):
        inside = [[float(rates[pair]) for pair in combinations(group, 2)] for group in groups]
        across = [[float(rates[a, b]) for a in group for b in other] for group, other in combinations(groups, 2)]
        usual = [statistics.median(of_group) for of_group in inside]
        apart = zip(across, combinations(inside, 2))
        if max(usual) <= _ALIKE * min(usual) and all(_less(outer, [*inner, *other]) for outer, (inner, other) in apart):
            return RackGuess(groups, statistics.median(chain(*inside)), statistics.median(chain(*across)))
    return None


def _less(across: Sequence[float], inside: Sequence[float]) -> bool:
    """Return whether pairs across two racks are clearly slower than pairs inside: in the median, and most of them."""
    rarely, mostly = sorted(across)[-(-3 * len(across) // 4) - 1], sorted(inside)[len(inside) // 8]
    return rarely < mostly and _CONTRAST * statistics.median(across) <= statistics.median(inside)


def _guesses(rates: np.ndarray) -> Iterator[Groups]:
    """Yield possible racks, the smallest first: clusters of hosts with similar rates to all others (average linkage).

    The rate of a single pair says little: two hosts of different racks may have been alone on the uplinks.
    """
    groups = [[host] for host in range(len(rates))]
    distances = _distances(rates)  # summed over the members of two groups
    while len(groups) > 2:
        sizes = np.array([len(group) for group in groups])
        mean = distances / np.outer(sizes, sizes)
        np.fill_diagonal(mean, np.inf)
        kept, merged = sorted(int(at) for at in np.unravel_index(mean.argmin(), mean.shape))
        distances[kept] += distances[merged]
        distances[:, kept] += distances[:, merged]
        distances = np.delete(np.delete(distances, merged, 0), merged, 1)
        groups[kept] += groups.pop(merged)
        if len({len(group) for group in groups}) == 1:
            yield tuple(sorted(tuple(sorted(group)) for group in groups))


def _distances(rates: np.ndarray) -> np.ndarray:
    """Return for each pair of hosts how much their rates to the other hosts differ: the mean of |log ratio|."""
    count = len(rates)
    logs = np.log(np.where(np.eye(count, dtype=bool), 1.0, rates))
    distances = np.zeros((count, count))
    for host in range(count):
        differ = np.abs(logs - logs[host])
        differ[:, host] = 0  # only the other hosts count, not the two themselves
        np.fill_diagonal(differ, 0)
        distances[host] = differ.sum(axis=1) / max(1, count - 2)
    return distances
