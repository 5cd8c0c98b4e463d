"""The rows, columns and colours of a drawn plan.

There is a row for each rank. The rounds go from left to right; between them are columns for the work in memory. All
sizes are in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Collection, Dict, List, Sequence, Tuple

from ddl.plan.ir import Kind
from ddl.plan.schedule import LocalWork, Schedule
from ddl.plan.step_text import run_text
from ddl.plan.svg import width_of
from ddl.topology import Topology

__all__ = ["COLORS", "GREY", "HALF", "INK", "LINE", "READS", "SHADE", "SMALL"]
__all__ += ["ChartLayer", "Columns", "Frame", "Rows", "work_text"]

INK, GREY, LINE, SHADE = "#1a202c", "#718096", "#cbd5e0", "#eaf2fb"
#: For each dimension a colour, and a pale one for details; innermost first, then again from the beginning.
COLORS = (
    ("#2b6cb0", "#a9c9e8"),
    ("#c05621", "#f0c3a4"),
    ("#2f855a", "#a8d5bd"),
    ("#6b46c1", "#cbbcec"),
    ("#b83280", "#efb3d6"),
)

SMALL = 10  # the size of letters in the chart
HALF = 15  # half the height of a row
_PADDING = 6  # between a frame and the frame around it
_MEET, _GAP, _QUIET = 44, 46, 26  # widths of rounds: with a meet; omitted rounds together; with nothing to show
_ARROWS = 52  # width of the lines that show reads and writes
_LEAST = 88  # least width of a round with messages, or of a column with reads or writes
_SPACE = 4  # beside a column of works
_PAUSE = 6  # between two rounds without work between them
READS = (Kind.REDUCE_FROM, Kind.COPY_FROM)
_SIGNS = {Kind.REDUCE_FROM: "Σ", Kind.COPY_FROM: "←", Kind.COPY_TO: "→", Kind.COPY: "="}


def work_text(work: LocalWork) -> str:
    """Return the text in the box of a work: a sign for its kind, and the chunks."""
    return f"{_SIGNS[work.step.kind]} {run_text(work.step.first, work.step.count)}"


@dataclass(frozen=True)
class Frame:
    """A box around the rows of a host, a rack, ...: ``level`` is the dimension that numbers them, innermost 0."""

    level: int
    label: str
    shared: bool
    top: float
    bottom: float


class Rows:
    """The height of each rank's line, and the frames around them, outermost first."""

    def __init__(self, topology: Topology, shown: Sequence[int], top: float) -> None:
        levels = len(topology.dimensions)
        self.at: Dict[int, float] = {}
        y = top + HALF + _PADDING * levels
        for before, rank in zip((None, *shown), shown):
            if before is not None:
                level = topology.crossed(before, rank)
                y += 2 * HALF + (2 * _PADDING * level if level else 0)
            self.at[rank] = y
        self.bottom = y + HALF + _PADDING * levels
        shared = sum(dimension.shared for dimension in topology.dimensions)
        self.frames: List[Frame] = []
        for level in range(levels, 0, -1):
            shares = level == shared and topology.local_size > 1
            if level == levels and not shares:
                continue
            margin = HALF + _PADDING * (level - 1)
            for place, group in groupby(shown, key=lambda rank: topology.coordinates(rank)[level:]):
                rows = [self.at[rank] for rank in group]
                label = f"{topology.dimensions[level].name.rstrip('s')} {place[0]}" if place else ""
                self.frames.append(Frame(level, label, shares, rows[0] - margin, rows[-1] + margin))


@dataclass(frozen=True)
class ChartLayer:
    """A column of works. Boxes that write to peers are at its left end, others at its right end, lines in between."""

    left: float
    right: float
    box: float  #: width of a box
    lines: Tuple[float, float]  #: left and right ends

    def box_at(self, kind: Kind) -> float:
        """Return the left end of a box."""
        return self.left if kind is Kind.COPY_TO else self.right - self.box


class Columns:
    """Where each depth begins and ends, and the rounds between them; a gap stands for hidden rounds."""

    def __init__(self, events: Schedule, shown: Collection[int], hidden: Collection[int], left: float) -> None:
        self.start: Dict[int, float] = {}
        self.end: Dict[int, float] = {}
        self.rounds: Dict[int, Tuple[float, float]] = {}
        self.layers: Dict[Tuple[int, int], ChartLayer] = {}
        self.gaps: List[Tuple[int, int, float]] = []
        self._widths = _round_widths(events, shown)
        x = left
        for depth in range(events.rounds + 1):
            if depth in hidden and depth + 1 in hidden:
                continue
            if depth in hidden:
                first = next(number for number in range(depth, -1, -1) if number - 1 not in hidden)
                self.gaps.append((first, depth, x))
                x += _GAP
            elif depth:
                self.rounds[depth] = (x, x + self._widths[depth])
                x += self._widths[depth]
            self.start[depth] = x
            x = self._add_layers([work for work in events.works if work.depth == depth and work.rank in shown], x)
            if self.start[depth] == x:
                x += _PAUSE
            self.end[depth] = x
        self.right = x

    def _add_layers(self, works: Sequence[LocalWork], x: float) -> float:
        for number in sorted({work.layer for work in works}):
            layer = [work for work in works if work.layer == number]
            box = max(width_of(work_text(work), SMALL) for work in layer) + 10
            reads = any(work.step.kind in READS for work in layer)
            writes = any(work.step.kind is Kind.COPY_TO for work in layer)
            lines = max(_ARROWS, _LEAST - box) if reads or writes else 0
            left, first = x + _SPACE, x + _SPACE + (box if writes else 0)
            last = first + lines
            right = last + (box if reads or not writes else 0)
            self.layers[works[0].depth, number] = ChartLayer(left, right, box, (first, last))
            x = right + _SPACE
        return x


def _round_widths(events: Schedule, shown: Collection[int]) -> List[float]:
    widths: List[float] = [_QUIET] * (events.rounds + 1)
    for meet in events.meets:
        if any(rank in shown for rank in meet.ranks):
            widths[meet.round] = max(widths[meet.round], _MEET)
    for message in events.messages:
        if message.source in shown or message.target in shown:
            widths[message.arrives] = max(widths[message.arrives], _LEAST)
    return widths
