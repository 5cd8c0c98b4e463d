"""Which hosts sit behind a common switch whose way out is narrower than they are: from what pairs of hosts got. Pure.

One message gets the full rate even through an uplink that is a quarter of what the rack's hosts send together. So pairs
are measured while all other hosts talk, too (ddl/tuning/measure/find_racks.py), in tournaments: in several ones,
shuffled differently, of which a pair's slowest figure counts, as beside it in one of them few others may cross the
uplink. Hosts of one rack then see the others alike, by which groups are guessed, and get more among themselves than
across, by which a guess is judged: none is better than a wrong one. Racks that are alike are found as they are or not
at all; of those that differ none is torn apart, but some may be joined.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from ddl.text.units import bytes_text, duration
from ddl.tuning.tournament import Rounds, tournament

__all__ = ["FEWEST_HOSTS", "Racks", "Suspicion", "suspect", "tournaments"]

FEWEST_HOSTS = 4  #: two racks of two
#: The typical pair in racks gets so many times what one across them gets: more than noise explains, and what an uplink
#: shows that carries half of what its hosts send. Racks themselves differ less than this:
_CONTRAST, _ALIKE = 1.5, 2.0

Groups = Tuple[Tuple[int, ...], ...]


@dataclass(frozen=True)
class Suspicion:
    """What looks like racks: hosts in groups, and what is typical of a pair, each way, where all hosts talk at once."""

    groups: Groups  #: hosts by number, as in ``TunedCluster.hosts``, from 0
    within_bytes_per_s: float
    between_bytes_per_s: float

    def text(self, hosts: Sequence[str]) -> str:
        """Return the racks and why they are some, for people; ``hosts`` are those of the ``TunedCluster``."""
        names = [host.rpartition(":")[0] for host in hosts]
        racks = " | ".join(" ".join(names[host] for host in group) for group in self.groups)
        within, between = bytes_text(int(self.within_bytes_per_s)), bytes_text(int(self.between_bytes_per_s))
        return f"racks {racks}: {within}/s within and {between}/s between them where all hosts talk at once"


@dataclass(frozen=True)
class Racks(Suspicion):
    """Racks that it is of use to know: the seconds of a large all-reduce with them and, at the same time, without."""

    nbytes: int
    seconds: float
    default_seconds: float

    def text(self, hosts: Sequence[str]) -> str:
        """As above, and what they are good for."""
        with_racks, default = duration(self.seconds), duration(self.default_seconds)
        return f"{super().text(hosts)}; allreduce of {bytes_text(self.nbytes)} {with_racks}, without racks {default}"


def tournaments(hosts: int, count: int) -> List[Rounds]:
    """Return so many tournaments of hosts 0, 1, ..., each shuffled differently: always the same ones."""
    shuffle = np.random.RandomState(0)  # the one stream that numpy promises never to change
    return [tournament(shuffle.permutation(hosts).tolist()) for _ in range(count)]


def suspect(rates: np.ndarray) -> Optional[Suspicion]:
    """Return the racks that rates under load speak for, two or more of as many hosts, two or more; or None.

    ``rates``: (hosts, hosts), symmetric, bytes per second; what each pair got. The diagonal is not read.
    """
    for groups in _guesses(rates):
        inside = [[float(rates[pair]) for pair in combinations(group, 2)] for group in groups]
        across = [[float(rates[a, b]) for a in group for b in other] for group, other in combinations(groups, 2)]
        usual = [statistics.median(of_group) for of_group in inside]
        apart = zip(across, combinations(inside, 2))
        if max(usual) <= _ALIKE * min(usual) and all(_less(outer, [*inner, *other]) for outer, (inner, other) in apart):
            return Suspicion(groups, statistics.median(chain(*inside)), statistics.median(chain(*across)))
    return None


def _less(across: Sequence[float], inside: Sequence[float]) -> bool:
    """Return whether pairs across two racks get clearly less than those inside: in the median and, mostly, at all."""
    rarely, mostly = sorted(across)[-(-3 * len(across) // 4) - 1], sorted(inside)[len(inside) // 8]
    return rarely < mostly and _CONTRAST * statistics.median(across) <= statistics.median(inside)


def _guesses(rates: np.ndarray) -> Iterator[Groups]:
    """Return what may be racks, the smallest first: clusters of hosts that see the others alike (average linkage).

    The rate of a pair alone is a bad guide: two hosts of different racks may have had the uplinks for themselves.
    """
    groups = [[host] for host in range(len(rates))]
    apart = _differences(rates)  # summed up over the members of two groups
    while len(groups) > 2:
        sizes = np.array([len(group) for group in groups])
        mean = apart / np.outer(sizes, sizes)
        np.fill_diagonal(mean, np.inf)
        kept, gone = sorted(int(at) for at in np.unravel_index(mean.argmin(), mean.shape))
        apart[kept] += apart[gone]
        apart[:, kept] += apart[:, gone]
        apart = np.delete(np.delete(apart, gone, 0), gone, 1)
        groups[kept] += groups.pop(gone)
        if len({len(group) for group in groups}) == 1:
            yield tuple(sorted(tuple(sorted(group)) for group in groups))


def _differences(rates: np.ndarray) -> np.ndarray:
    """Return for each two hosts how differently the others look from them: the mean of |log ratio of their rates|."""
    count = len(rates)
    logs = np.log(np.where(np.eye(count, dtype=bool), 1.0, rates))
    distances = np.zeros((count, count))
    for host in range(count):
        differ = np.abs(logs - logs[host])
        differ[:, host] = 0  # neither of the two counts as one of the others
        np.fill_diagonal(differ, 0)
        distances[host] = differ.sum(axis=1) / max(1, count - 2)
    return distances
