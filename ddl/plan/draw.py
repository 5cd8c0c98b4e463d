"""Draws a collective: a row for each rank, rounds from left to right, and the messages, reads and writes in them.

Arrows are messages, in the colour of the dimension that they cross; thin lines are reads and writes in shared memory.
The numbers at an arrow or in a box are chunk ids. ``schedule`` says what happens in which round, ``excerpt`` which part
of a large plan is shown, ``chart`` where everything lies.
"""

from __future__ import annotations

from typing import Collection, Dict, List, Sequence, Set, Tuple

from ddl.plan.chart import COLORS, GREY, HALF, INK, LINE, READS, SHADE, SMALL, Columns, Rows, work_text
from ddl.plan.excerpt import hidden_rounds, shown_ranks
from ddl.plan.ir import Kind, Plan
from ddl.plan.legend import draw_legend
from ddl.plan.schedule import LocalWork, Message, Schedule, schedule
from ddl.plan.step_text import run_text, step_text
from ddl.plan.svg import Pen, shortened, width_of
from ddl.plan.verify import Proof
from ddl.topology import Topology

__all__ = ["draw"]

_MARGIN, _HEAD = 24, 104  # around everything; above the rows, for the titles and the column heads
_NARROWEST = 560  # so that the legend fits
_WHITE = "#ffffff"
_STUB = (16, 9)  # width and height of the start of a message whose other end is not drawn


def draw(plans: Sequence[Plan], proof: Proof, topology: Topology, *, focus: int = 0, subtitle: str = "") -> str:
    """Return the SVG document.

    ``plans`` are those of all ranks of ``topology``, and ``proof`` is what ``verify`` returned for them. Of a large
    plan, only an excerpt around rank ``focus`` is drawn. ``subtitle`` may name what the plans do not know, like sizes.
    """
    events = schedule(plans, proof)
    shown = shown_ranks(topology, focus)
    drawing = _Drawing(events, topology, shown, hidden_rounds(events, shown))
    drawing.draw_chart()
    title = f"{proof.collective.name.lower()} by {proof.algorithm} on {topology}"
    return drawing.finish(title, subtitle, focus)


class _Drawing:
    """The pen, and where everything lies."""

    def __init__(self, events: Schedule, topology: Topology, shown: Sequence[int], hidden: Collection[int]) -> None:
        self.events, self.topology, self.shown, self.hidden = events, topology, shown, hidden
        self.pen = Pen()
        self.rows = Rows(topology, shown, _HEAD)
        self.frame_left: Dict[int, float] = {}
        x: float = _MARGIN
        for frame in self.rows.frames:
            if frame.level not in self.frame_left:
                self.frame_left[frame.level] = x
                labels = [other.label for other in self.rows.frames if other.level == frame.level]
                x += max(width_of(label, SMALL + 1) for label in labels) + 16
        self.rank_left = x
        self.left = x + width_of(f"rank {max(shown)}", SMALL + 1) + 8
        self.columns = Columns(events, self.rows.at, hidden, self.left)
        self.stubs = False
        self._labelled: Set[Tuple[int, int, bool]] = set()  # rank, round, and whether above its line

    def draw_chart(self) -> None:
        """Draw everything but the texts above and below."""
        self._draw_frames()
        self._draw_heads()
        for work in self.events.works:
            self._draw_accesses(work)
        for message in sorted(self.events.messages, key=lambda message: len(message.runs)):  # empty ones lie below
            self._draw_message(message)
        self._draw_meets()
        for message in self.events.messages:
            self._label(message)
        for work in self.events.works:
            self._draw_box(work)

    def finish(self, title: str, subtitle: str, focus: int) -> str:
        """Add the texts above and below; return the document."""
        self.pen.text(_MARGIN, _MARGIN + 12, title, size=18, bold=True)
        if subtitle:
            self.pen.text(_MARGIN, _MARGIN + 31, subtitle, size=12, color=GREY)
        note = self._omitted(focus)
        right = self.columns.right + 8 * len(self.topology.dimensions)
        right = max(
            right, _NARROWEST, *(_MARGIN + width_of(*text) for text in ((title, 18), (subtitle, 12), (note, 11)))
        )
        corner = (_MARGIN, self.rows.bottom + 26)
        bottom = draw_legend(self.pen, self.events, self.topology, corner, right - _MARGIN, self.stubs)
        if note:
            bottom += 18
            self.pen.text(_MARGIN, bottom, note, size=11, color=GREY)
        return self.pen.document(right + _MARGIN, bottom + _MARGIN, title)

    def _omitted(self, focus: int) -> str:
        size, few = self.topology.size, len(self.shown)
        parts = []
        if few < size:
            parts.append(f"{size - few} of {size} ranks (drawn: rank {focus} and ranks in line with it)")
        if self.hidden:
            runs = [f"{first}–{last}" for first, last, _ in self.columns.gaps]
            parts.append(f"rounds {', '.join(runs)} of {self.events.rounds}")
        return f"Not drawn: {' and '.join(parts)}." if parts else ""

    def _draw_frames(self) -> None:
        for frame in self.rows.frames:
            left, right = self.frame_left[frame.level], self.columns.right + 8 * frame.level
            fill = SHADE if frame.shared else "none" if frame.level < len(self.topology.dimensions) - 1 else _WHITE
            self.pen.box(left, frame.top, right - left, frame.bottom - frame.top, fill=fill, line=LINE, round=6)
            if frame.label:
                self.pen.text(left + 8, (frame.top + frame.bottom) / 2 + 4, frame.label, size=SMALL + 1, color=GREY)
        for rank, y in self.rows.at.items():
            self.pen.text(self.rank_left, y + 4, f"rank {rank}", size=SMALL + 1)
            x = self.left
            for _, last, gap in self.columns.gaps:
                self.pen.line(x, y, gap, y, color=LINE, width=1)
                x = self.columns.start[last]
                self.pen.line(gap, y, x, y, color=LINE, width=1, dash="2 5")
            self.pen.line(x, y, self.columns.right, y, color=LINE, width=1)

    # The column heads: the numbers of the rounds, and above them what they do.

    def _draw_heads(self) -> None:
        y = _HEAD - 4
        self.pen.text(self.left - 8, y, "round", size=SMALL, color=GREY, anchor="end")
        for number, (left, right) in self.columns.rounds.items():
            self.pen.text((left + right) / 2, y, str(number), size=SMALL, color=GREY, anchor="middle")
        for first, last, left in self.columns.gaps:
            middle = (left + self.columns.start[last]) / 2
            self.pen.text(middle, y, f"{first}–{last}", size=SMALL, color=GREY, anchor="middle")
        for left, right, text, color in self._phases():
            self.pen.line(left + 4, y - 14, right - 4, y - 14, color=color)
            label = shortened(text, SMALL, right - left)
            self.pen.text((left + right) / 2, y - 19, label, size=SMALL, color=color, anchor="middle", hint=text)

    def _phases(self) -> List[Tuple[float, float, str, str]]:
        """Return left end, right end, text and colour for each run of rounds and layers that do the same."""
        drawn = [(*self.columns.rounds[number], *self._doing(number)) for number in self.columns.rounds]
        for (depth, number), layer in self.columns.layers.items():
            kinds = {work.step.kind for work in self._shown_works() if (work.depth, work.layer) == (depth, number)}
            text = "reduce: memory" if Kind.REDUCE_FROM in kinds else "copy: memory"
            drawn.append((layer.left, layer.right, "copy" if kinds == {Kind.COPY} else text, COLORS[0][0]))
        phases: List[Tuple[float, float, str, str]] = []
        for left, right, text, color in sorted(drawn):
            if phases and phases[-1][2:] == (text, color):
                phases[-1] = (phases[-1][0], right, text, color)
            else:
                phases.append((left, right, text, color))
        return [phase for phase in phases if phase[2]]

    def _doing(self, number: int) -> Tuple[str, str]:
        """Return the text and the colour that say what happens in a round."""
        messages = [m for m in self.events.messages if m.arrives == number and m.runs]
        if not messages:
            return ("meet" if any(meet.round == number for meet in self.events.meets) else ""), GREY
        crossed = {self.topology.crossed(m.source, m.target) for m in messages}
        verbs = {"reduce" if m.reduces else "copy" for m in messages}
        verb = verbs.pop() if len(verbs) == 1 else "reduce, copy"
        if len(crossed) > 1:
            return verb, INK
        dimension = crossed.pop()
        return f"{verb}: {self.topology.dimensions[dimension].name}", COLORS[dimension % len(COLORS)][0]

    # What the ranks do.

    def _ends(self, message: Message) -> Tuple[float, float]:
        """Return the left and the right end of a message; (0, 0) if it is not drawn."""
        if message.arrives in self.hidden or message.leaves not in self.columns.end:
            return 0, 0
        return self.columns.end[message.leaves], self.columns.start[message.arrives]

    def _draw_message(self, message: Message) -> None:
        left, right = self._ends(message)
        source, target = self.rows.at.get(message.source), self.rows.at.get(message.target)
        if not right or (source is None and target is None):
            return
        dimension = self.topology.crossed(message.source, message.target)
        color, pale = COLORS[dimension % len(COLORS)]
        if source is None or target is None:
            self.stubs = True
            down = self.topology.position(message.source) < self.topology.position(message.target)
            wide, high = _STUB[0], _STUB[1] if down else -_STUB[1]
            if source is not None:
                self.pen.line(left, source, left + wide, source + high, color=pale, width=1.6)
            elif target is not None:
                self.pen.line(right - wide, target - high, right, target, color=pale, width=1.6)
        elif not message.runs:
            self.pen.line(left, source, right, target, color=GREY, width=1, dash="3 3")
        elif message.reduces:
            self.pen.line(left, source, right, target, color=color, width=1.6)
            self.pen.dot(right, target, color=color)
        else:
            self.pen.arrow(left, source, right, target, color=color, width=1.6)

    def _label(self, message: Message) -> None:
        """Write a message's chunks before its head, on the side from which it does not come, if there is room."""
        _, right = self._ends(message)
        if not right or not message.runs or message.source not in self.rows.at or message.target not in self.rows.at:
            return
        y = self.rows.at[message.target]
        from_below = self.rows.at[message.source] > y
        for above in (from_below, not from_below):
            if (message.target, message.arrives, above) not in self._labelled:
                self._labelled.add((message.target, message.arrives, above))
                break
        else:
            return
        text = ", ".join(run_text(*run) for run in message.runs)
        label = shortened(text, SMALL, 52)
        wide = width_of(label, SMALL)
        base = y - 4 if above else y + 12
        color = COLORS[self.topology.crossed(message.source, message.target) % len(COLORS)][0]
        self.pen.box(right - 10 - wide, base - 9, wide + 2, 11, fill=_WHITE, round=2)
        self.pen.text(right - 9 - wide / 2, base, label, size=SMALL, color=color, anchor="middle", hint=text)

    def _shown_works(self) -> List[LocalWork]:
        return [w for w in self.events.works if w.rank in self.rows.at and (w.depth, w.layer) in self.columns.layers]

    def _draw_meets(self) -> None:
        taken: List[Tuple[int, float, float]] = []
        for meet in self.events.meets:
            heights = {rank: self.rows.at[rank] for rank in meet.ranks if rank in self.rows.at}
            if meet.round not in self.columns.rounds or not heights:
                continue
            top, bottom = min(heights.values()), max(heights.values())
            beside = sum(number == meet.round and top <= high and low <= bottom for number, low, high in taken)
            taken.append((meet.round, top, bottom))
            left, right = self.columns.rounds[meet.round]
            x = min((left + right) / 2 + 10 * beside, right - 4)
            self.pen.line(x, top, x, bottom, color=GREY, width=3)
            for rank, y in heights.items():
                self.pen.dot(x, y, color=GREY, fill="" if rank in meet.waiting else _WHITE)

    def _draw_accesses(self, work: LocalWork) -> None:
        """Draw lines from the rows that a work reads, or to the rows that it writes."""
        layer = self.columns.layers.get((work.depth, work.layer))
        if layer is None or work.rank not in self.rows.at:
            return
        pale, y = COLORS[0][1], self.rows.at[work.rank]
        for peer in work.step.peers:
            if peer not in self.rows.at:
                continue
            if work.step.kind in READS:
                self.pen.line(layer.lines[0], self.rows.at[peer], layer.lines[1], y, color=pale, width=1)
            else:
                self.pen.arrow(layer.lines[0], y, layer.lines[1], self.rows.at[peer], color=pale, width=1)

    def _draw_box(self, work: LocalWork) -> None:
        layer = self.columns.layers.get((work.depth, work.layer))
        if layer is None or work.rank not in self.rows.at:
            return
        x, y = layer.box_at(work.step.kind), self.rows.at[work.rank]
        self.pen.box(x, y - HALF + 5, layer.box, 2 * HALF - 10, fill=_WHITE, line=COLORS[0][0], round=3)
        hint = f"rank {work.rank}: {step_text(work.step)}"
        self.pen.text(x + layer.box / 2, y + 4, work_text(work), size=SMALL, anchor="middle", hint=hint)
