"""The table of targets: what was wanted, what was seen, for people, for documents, and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence

from ddl.text.columns import aligned
from ddl.text.units import duration

__all__ = ["Row", "insert", "markdown", "of_json", "text"]

HEAD = ("target", "what", "DDL", "gloo", "MPI", "bound", "ratio", "wanted", "met")
BEGIN, END = "<!-- written by python -m benchmarks targets --document -->", "<!-- end of what it writes -->"


@dataclass(frozen=True)
class Row:
    """One thing that is wanted, and what was seen. ``ours`` to ``bound``: median seconds, unless ``counted``."""

    target: str
    what: str
    ratio: float  #: what is judged
    of: str  #: what it is the ratio to
    wanted: float
    at_most: bool = True  #: ``ratio`` must not be above ``wanted``; otherwise not below it
    ours: Optional[float] = None
    gloo: Optional[float] = None
    mpi: Optional[float] = None
    mpi_name: str = ""  #: which one the faster is
    bound: Optional[float] = None
    counted: bool = False
    note: str = ""  #: what a reader should know besides; why it is missed, as far as was measured

    @property
    def met(self) -> bool:
        return self.ratio <= self.wanted if self.at_most else self.ratio >= self.wanted

    def cells(self) -> List[str]:
        def shown(value: Optional[float]) -> str:
            return "-" if value is None else f"{value:g}" if self.counted else duration(value, 3)

        mpi = shown(self.mpi) + (f" ({self.mpi_name})" if self.mpi_name else "")
        wanted = f"{'at most' if self.at_most else 'at least'} {self.wanted:g}"
        ratio = f"{self.ratio:.3f} x {self.of}"
        judged = [ratio, wanted, "yes" if self.met else "NO"]
        return [self.target, self.what, shown(self.ours), shown(self.gloo), mpi, shown(self.bound), *judged]


def text(rows: Sequence[Row]) -> str:
    """Return the table for a terminal, and the notes below it."""
    notes = [f"{row.target}, {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join([*aligned([HEAD, *(row.cells() for row in rows)]), *(["", *notes] if notes else [])])


def markdown(rows: Sequence[Row]) -> str:
    """Return the same for a document."""
    lines = [list(HEAD), ["---"] * len(HEAD), *(row.cells() for row in rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    notes = "\n".join(
        textwrap.fill(f"* {row.target}, {row.what}: {row.note}", 120, subsequent_indent="  ")
        for row in rows
        if row.note
    )
    return f"{table}\n\n{notes}" if notes else table


def insert(document: str, table: str) -> str:
    """Return ``document`` with ``table`` between its two marks; ValueError if it has none."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"it has no lines {BEGIN!r} and {END!r}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def of_json(written: Mapping[str, Any]) -> List[Row]:
    """Return all rows of a results file, in the order of the targets."""
    names = {field.name for field in dataclasses.fields(Row)}
    targets = written["targets"]
    entries = [row for name in sorted(targets) for row in targets[name]["rows"]]
    return [Row(**{key: value for key, value in row.items() if key in names}) for row in entries]
