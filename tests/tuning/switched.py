"""What pairs of hosts get behind switches, in arithmetic: max-min fair shares of the racks' uplinks, and some noise."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np

from ddl.tuning.racks import tournaments

__all__ = ["rates"]


def rates(rack_of: Sequence[int], uplinks: Sequence[float], count: int, noise: Callable[[], float]) -> np.ndarray:
    """Return each pair's slowest rate in ``count`` tournaments, that of a host alone being 1.

    ``uplinks``: the rate of each rack's, each way; ``noise()``: a factor up to 1.
    """
    matrix = np.full((len(rack_of), len(rack_of)), np.inf)
    for pairs in chain(*tournaments(len(rack_of), count)):
        for pair, share in _shares(pairs, rack_of, uplinks).items():
            matrix[pair] = matrix[pair[::-1]] = min(matrix[pair], share * noise())
    return matrix


def _shares(
    pairs: List[Tuple[int, int]], rack_of: Sequence[int], uplinks: Sequence[float]
) -> Dict[Tuple[int, int], float]:
    """Fill all pairs alike until an uplink is full; who crosses it has what it has, and the others go on."""
    shares = dict.fromkeys(pairs, 1.0)
    left = dict(enumerate(uplinks))
    crossing = {(a, b): (rack_of[a], rack_of[b]) for a, b in pairs if rack_of[a] != rack_of[b]}
    while crossing:
        users = Counter(rack for racks in crossing.values() for rack in racks)
        share, full = min((left[rack] / count, rack) for rack, count in users.items())
        if share >= 1:
            break
        for pair in [pair for pair, racks in crossing.items() if full in racks]:
            shares[pair] = share
            for rack in crossing.pop(pair):
                left[rack] -= share
    return shares
