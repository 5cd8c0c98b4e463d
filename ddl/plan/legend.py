"""The legend below a drawn plan: a sample and its meaning for each kind of element in it, in columns."""

from __future__ import annotations

from typing import Callable, Dict, List, Sequence, Tuple

from ddl.plan.chart import COLORS, GREY, INK, SMALL
from ddl.plan.ir import Kind
from ddl.plan.schedule import Schedule
from ddl.plan.svg import Pen, width_of
from ddl.topology import Topology

__all__ = ["draw_legend"]

_SAMPLE, _APART, _HIGH = 36, 26, 22
#: Draws a sample that is at most ``_SAMPLE`` pixels wide, given its left end and the height of its middle.
_Sample = Callable[[Pen, float, float], None]
_Item = Tuple[_Sample, str]

_WORKS: Dict[Kind, Tuple[str, str]] = {
    Kind.REDUCE_FROM: ("Σ 0", "reduces the chunk in its peers' memory with its own"),
    Kind.COPY_FROM: ("← 0", "copies the chunk from a peer's memory"),
    Kind.COPY_TO: ("→ 0", "copies the chunk into its peers' memory"),
    Kind.COPY: ("= 0", "copies the chunk within its own memory"),
}


def draw_legend(
    pen: Pen, events: Schedule, topology: Topology, corner: Tuple[float, float], width: float, stubs: bool
) -> float:
    """Draw the legend from its upper left ``corner`` on, as wide as ``width``; return its lower end."""
    items = _items(events, topology, stubs)
    wide = max((_SAMPLE + width_of(text, SMALL + 1) + _APART for _, text in items), default=width)
    columns = max(1, int((width + _APART) / wide))
    for number, (sample, text) in enumerate(items):
        x, y = corner[0] + number % columns * wide, corner[1] + number // columns * _HIGH
        sample(pen, x, y)
        pen.text(x + _SAMPLE, y + 4, text, size=SMALL + 1)
    return corner[1] + -(-len(items) // columns) * _HIGH - _HIGH / 2


def _items(events: Schedule, topology: Topology, stubs: bool) -> List[_Item]:
    data = [message for message in events.messages if message.runs]
    crossed = sorted({topology.crossed(message.source, message.target) for message in data})
    items: List[_Item] = []
    for dimension in crossed:
        items.append((_message(dimension), f"message between {topology.dimensions[dimension].name}, with its chunks"))
    if any(message.reduces for message in data):
        items.append((_dot, "reduced with what the receiver has"))
    if any(not message.reduces for message in data):
        items.append((_head, "stored by the receiver"))
    if stubs:
        items.append((_stub, "message of a rank that is not drawn"))
    if len(data) < len(events.messages):
        items.append((_signal, "empty message"))
    kinds: Sequence[Kind] = sorted({work.step.kind for work in events.works})
    items += [(_box(_WORKS[kind][0]), _WORKS[kind][1]) for kind in kinds]
    if events.meets:
        items.append((_meet, "meet: a filled dot waits for the others"))
    return items


def _message(dimension: int) -> _Sample:
    color = COLORS[dimension % len(COLORS)][0]
    return lambda pen, x, y: pen.line(x, y, x + 28, y, color=color)


def _dot(pen: Pen, x: float, y: float) -> None:
    pen.line(x, y, x + 24, y, color=GREY)
    pen.dot(x + 24, y, color=GREY)


def _head(pen: Pen, x: float, y: float) -> None:
    pen.arrow(x, y, x + 28, y, color=GREY)


def _stub(pen: Pen, x: float, y: float) -> None:
    pen.line(x + 6, y - 4, x + 22, y + 5, color=COLORS[1][1])


def _signal(pen: Pen, x: float, y: float) -> None:
    pen.line(x, y, x + 28, y, color=GREY, width=1, dash="3 3")


def _box(text: str) -> _Sample:
    def sample(pen: Pen, x: float, y: float) -> None:
        pen.box(x, y - 9, 30, 18, fill="#ffffff", line=COLORS[0][0], round=3)
        pen.text(x + 15, y + 4, text, size=SMALL, anchor="middle", color=INK)

    return sample


def _meet(pen: Pen, x: float, y: float) -> None:
    pen.line(x + 5, y, x + 24, y, color=GREY, width=3)
    pen.dot(x + 5, y, color=GREY)
    pen.dot(x + 24, y, color=GREY, fill="#ffffff")
