"""The figures of one library as a table of text."""

from __future__ import annotations

from typing import Mapping

from ddl.text.columns import aligned
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.bench.figures import Figures

__all__ = ["details"]


def details(figures: Mapping[int, Figures]) -> str:
    """Return the table."""
    rows = [["size", "calls", "min", "median", "p99", "alg GB/s", "bus GB/s", "CPU s/GB"]]
    for nbytes, figure in figures.items():
        times = [duration(value, 3) for value in (figure.min, figure.median, figure.p99)]
        bandwidths = [f"{figure.algbw:.3g}", f"{figure.busbw:.3g}", f"{figure.cpu_per_gb:.3g}"]
        rows.append([exact_bytes_text(nbytes), str(figure.calls), *times, *bandwidths])
    return "\n".join(aligned(rows))
