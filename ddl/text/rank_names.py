"""How ranks and hosts are named in texts for people."""

from __future__ import annotations

from typing import Iterable, List, Sequence

__all__ = ["FEW", "listed", "name_ranks"]

FEW = 6  #: runs of ranks that a text names which has more to say


def name_ranks(ranks: Iterable[int], most: int = 0) -> str:
    """Return ``rank 3``, ``ranks 2, 5`` or ``ranks 2, 5-9`` for ascending ranks.

    ``most``: of more runs than that, only the first are named: ``ranks 2, 5-9, 12 and 31 more``.
    """
    runs: List[List[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    single = len(runs) == 1 and len(runs[0]) == 1
    unnamed = sum(map(len, runs[most:])) if most else 0
    runs = runs[:most] if most else runs
    names = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    more = f" and {unnamed} more" if unnamed else ""
    return f"{'rank' if single else 'ranks'} {', '.join(names)}{more}"


def listed(names: Sequence[str], most: int) -> str:
    """Return ``a, b`` or, of more than ``most`` names, ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
