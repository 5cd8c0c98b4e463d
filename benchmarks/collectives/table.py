"""The medians of all contestants as a table, and how they compare."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.bench.figures import Figures

__all__ = ["comparison", "ratios"]

#: contestant -> size -> figures
All = Mapping[str, Mapping[int, Figures]]
Ratios = Dict[int, Dict[str, Any]]


def ratios(figures: All, subject: str, peers: Sequence[str], sizes: Sequence[int]) -> Ratios:
    """Compare ``subject`` at each size with the fastest peer and with the limit, where these took part.

    ``peer_over_subject`` is a ratio of medians: above 1 the subject is faster. ``of_limit`` is the subject's bandwidth
    over the limit's.
    """
    table: Ratios = {}
    for nbytes in sizes:
        subject_median = figures[subject][nbytes].median
        row: Dict[str, Any] = {}
        running = [name for name in peers if name in figures and name != subject]
        if running:
            best = min(running, key=lambda name: figures[name][nbytes].median)
            row.update(best_peer=best, peer_over_subject=figures[best][nbytes].median / subject_median)
        if "limit" in figures and subject != "limit":
            row["of_limit"] = figures["limit"][nbytes].median / subject_median
        table[nbytes] = row
    return table


def comparison(figures: All, subject: str, compared: Ratios, mixed: Sequence[int]) -> str:
    """Return the table of all contestants' medians, with the ratios of ``ratios``."""
    peers = any("best_peer" in row for row in compared.values())
    limit = any("of_limit" in row for row in compared.values())
    head = ["size", *figures, *([f"best peer / {subject}"] if peers else [])]
    rows: List[List[str]] = [[*head, *([f"{subject} of limit"] if limit else [])]]
    for nbytes, row in compared.items():
        cells = [exact_bytes_text(nbytes) + ("*" if nbytes in mixed else "")]
        cells += [duration(of_size[nbytes].median, 3) for of_size in figures.values()]
        if peers:
            cells.append(f"{row['peer_over_subject']:.2f} x ({row['best_peer']})")
        if limit:
            cells.append(f"{100 * row['of_limit']:.0f} %")
        rows.append(cells)
    return "\n".join(aligned(rows))
