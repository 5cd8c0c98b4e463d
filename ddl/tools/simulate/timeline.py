"""Draws one training step: what watched ranks compute, and when which bucket crosses which dimension.

A band per rank: a row for its computation, one for copies between GPU and host if there are any, and one for each
dimension that messages cross (or memory that is read directly), with buckets in turning colours. Time without
computation is red. Sizes are in pixels.
"""

from __future__ import annotations

from typing import List, Mapping, Sequence

from ddl.plan.svg import Pen, shortened, width_of
from ddl.tools.doctor.phrases import duration
from ddl.tools.simulate.scenario import Scenario
from ddl.tuning.simulate.lane import STAGING
from ddl.tuning.simulate.simulation import Lateness, Span
from ddl.tuning.simulate.training import SimulatedStep

__all__ = ["draw"]

_MARGIN, _LEFT, _WIDE = 24.0, 170.0, 980.0
_ROW, _BOX, _BAND = 30.0, 20.0, 18.0  # heights: of a row, of a box in it, and between ranks
_INK, _GREY, _GRID, _EXPOSED = "#1a202c", "#718096", "#e2e8f0", "#e53e3e"
_FORWARD, _BACKWARD = "#cbd5e0", "#a0aec0"
_COLORS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#0987a0")
_NARROW = 0.6  # pixels: a narrower gap between boxes of one bucket is not drawn
_TICKS = (1, 2, 5)


def draw(place: Scenario, step: SimulatedStep, title: str, stragglers: Mapping[int, Lateness]) -> str:
    """Return the SVG document of a step whose ranks were watched."""
    pen = Pen()
    pen.text(_MARGIN, _MARGIN + 12, shortened(title, 16, _LEFT + _WIDE, bold=True), size=16, bold=True, hint=title)
    top = _MARGIN + 30
    y = top + 22
    bands = []
    for rank in sorted(step.outcome.spans):
        used = sorted({span.dimension for span in step.outcome.spans[rank]})
        bands.append((rank, used, y))
        y += _ROW * (1 + len(used)) + _BAND
    _axis(pen, step, top, y - _BAND)
    for rank, used, above in bands:
        _band(pen, place, step, rank, used, above, stragglers.get(rank, Lateness()))
    _legend(pen, y + 6, _COLORS[: len(step.buckets)])
    return pen.document(_MARGIN + _LEFT + _WIDE + _MARGIN, y + 6 + 20 + _MARGIN, title)


def _x(step: SimulatedStep, seconds: float) -> float:
    return _MARGIN + _LEFT + _WIDE * seconds / step.step_s


def _axis(pen: Pen, step: SimulatedStep, top: float, bottom: float) -> None:
    power = 1e-9
    while not any(step.step_s / (power * tick) <= 10 for tick in _TICKS):
        power *= 10
    each = next(power * tick for tick in _TICKS if step.step_s / (power * tick) <= 10)
    for number in range(int(step.step_s / each + 1e-9) + 1):
        x = _x(step, number * each)
        pen.line(x, top + 6, x, bottom, color=_GRID, width=1)
        pen.text(x, top, duration(number * each) if number else "0", size=11, color=_GREY, anchor="middle")


def _band(pen: Pen, place: Scenario, step: SimulatedStep, rank: int, used: List[int], y: float, late: Lateness) -> None:
    name = f"rank {rank}" + (" (late)" if late != Lateness() else "")
    pen.text(_MARGIN, y + 14, name, size=12, bold=True)
    forward, computed = late.of(step.forward_s), late.of(step.compute_s)
    _box(pen, step, 0.0, forward, y, _FORWARD, "forward")
    _box(pen, step, forward, computed, y, _BACKWARD, "backward")
    ended = max(step.outcome.ends.get(rank, step.outcome.ends[0]))
    if ended > computed:
        _box(pen, step, computed, ended, y, _EXPOSED, f"exposed {duration(ended - computed)}")
    for row, dimension in enumerate(used):
        below = y + _ROW * (row + 1)
        label = _label(place, dimension)
        pen.text(_MARGIN + 12, below + 14, shortened(label, 11, _LEFT - 20), size=11, color=_GREY, hint=label)
        for span in _joined(step, [s for s in step.outcome.spans[rank] if s.dimension == dimension]):
            bucket = step.buckets[span.operation]
            text = f"bucket {span.operation}, {bucket.nbytes} bytes, {duration(span.end - span.begin)}"
            color = _COLORS[span.operation % len(_COLORS)]
            _box(pen, step, span.begin, span.end, below, color, str(span.operation), text)


def _label(place: Scenario, dimension: int) -> str:
    if dimension == STAGING:
        return "GPU and host"
    level = place.topology.dimensions[dimension]
    return f"{level.name} ({level.size}{', memory' if level.shared else ''})"


def _joined(step: SimulatedStep, spans: List[Span]) -> List[Span]:
    """Close the gaps that nobody would see: there may be thousands of messages."""
    near = _NARROW * step.step_s / _WIDE
    joined: List[Span] = []
    for span in sorted(spans, key=lambda entry: (entry.operation, entry.begin)):
        last = joined[-1] if joined else None
        if last is not None and last.operation == span.operation and span.begin <= last.end + near:
            joined[-1] = Span(last.operation, last.dimension, last.begin, max(last.end, span.end))
        else:
            joined.append(span)
    return joined


def _box(
    pen: Pen, step: SimulatedStep, begin: float, end: float, y: float, color: str, text: str, hint: str = ""
) -> None:
    x, wide = _x(step, begin), max(0.5, _WIDE * (end - begin) / step.step_s)
    pen.box(x, y, wide, _BOX, fill=color, round=1)
    ink = _INK if color in (_FORWARD, _BACKWARD) else "#ffffff"
    if width_of(text, 10) + 4 <= wide:
        pen.text(x + wide / 2, y + 14, text, size=10, color=ink, anchor="middle", hint=hint)


def _legend(pen: Pen, y: float, of_buckets: Sequence[str]) -> None:
    x = _MARGIN + _LEFT
    for colors, text in (
        ((_FORWARD,), "forward"),
        ((_BACKWARD,), "backward"),
        ((_EXPOSED,), "exposed: nothing to compute"),
        (of_buckets, "a bucket's messages, or memory read and written; the number is the bucket's"),
    ):
        for color in colors:
            pen.box(x, y, 12, 12, fill=color, round=1)
            x += 14
        pen.text(x + 4, y + 10, text, size=11, color=_GREY)
        x += 4 + width_of(text, 11) + 18
