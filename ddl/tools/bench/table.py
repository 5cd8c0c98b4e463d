"""The figures for people: two tables of text."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ddl.tools.bench.figures import Figures
from ddl.tools.bench.plan import readable

__all__ = ["aligned", "comparison", "details", "duration", "ratios"]

#: contestant -> size -> figures
All = Mapping[str, Mapping[int, Figures]]
Ratios = Dict[int, Dict[str, Any]]


def duration(seconds: float) -> str:
    """Return seconds for people, three digits: ``1.23 us``, ``45.6 ms``."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    raise AssertionError("unreachable")


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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    wide = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, wide)).rstrip() for row in rows)


def comparison(figures: All, subject: str, compared: Ratios, mixed: Sequence[int]) -> str:
    """Return the table of all contestants' medians, with the ratios of ``ratios``."""
    peers = any("best_peer" in row for row in compared.values())
    limit = any("of_limit" in row for row in compared.values())
    head = ["size", *figures, *([f"best peer / {subject}"] if peers else [])]
    rows: List[List[str]] = [[*head, *([f"{subject} of limit"] if limit else [])]]
    for nbytes, row in compared.items():
        cells = [readable(nbytes) + ("*" if nbytes in mixed else "")]
        cells += [duration(of_size[nbytes].median) for of_size in figures.values()]
        if peers:
            cells.append(f"{row['peer_over_subject']:.2f} x ({row['best_peer']})")
        if limit:
            cells.append(f"{100 * row['of_limit']:.0f} %")
        rows.append(cells)
    return aligned(rows)


def details(figures: Mapping[int, Figures]) -> str:
    """Return the table of everything about one contestant."""
    rows = [["size", "calls", "min", "median", "p99", "alg GB/s", "bus GB/s", "CPU s/GB"]]
    for nbytes, figure in figures.items():
        times = [duration(value) for value in (figure.min, figure.median, figure.p99)]
        bandwidths = [f"{figure.algbw:.3g}", f"{figure.busbw:.3g}", f"{figure.cpu_per_gb:.3g}"]
        rows.append([readable(nbytes), str(figure.calls), *times, *bandwidths])
    return aligned(rows)
