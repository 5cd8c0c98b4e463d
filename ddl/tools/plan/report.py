"""What ``ddl plan`` prints: the figures as a table, and the steps of one rank."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ddl.plan import Plan
from ddl.plan.counts import Counts
from ddl.plan.step_text import step_text
from ddl.plan.verify import Proof
from ddl.tools.doctor.phrases import bytes_text, duration
from ddl.tools.plan.figures import PlanFigures

__all__ = ["report", "steps_lines"]

#: The columns of the table: what is counted, and whether in chunks.
_COLUMNS: Dict[str, Tuple[Callable[[Counts], int], bool]] = {
    "messages": (lambda counts: counts.messages, False),
    "empty": (lambda counts: counts.signals, False),
    "sent": (lambda counts: counts.chunks_sent, True),
    "received": (lambda counts: counts.chunks_received, True),
    "read": (lambda counts: counts.chunks_read, True),
    "written": (lambda counts: counts.chunks_written, True),
}


def report(figures: PlanFigures, seconds: float) -> List[str]:
    """Return the lines about all ranks; ``seconds``: how long it takes to verify them."""
    return [_title(figures), *_verdict(figures, seconds), "", *_sizes(figures), "", *_table(figures), *_paper(figures)]


def _title(figures: PlanFigures) -> str:
    size, local = figures.topology.size, figures.topology.local_size
    sharing = "all share memory" if local == size else f"groups of {local} share memory"
    sharing = "no two share memory" if local == 1 else sharing
    who = f"{size} ranks, {sharing}" if size > 1 else "one rank"
    what = f"{figures.collective.name.lower()} of {bytes_text(figures.nbytes)}" if figures.chunks else "barrier"
    return f"{what} by {figures.line.algorithm} on {figures.topology}: {who}"


def _verdict(figures: PlanFigures, seconds: float) -> List[str]:
    if not figures.verified:
        return [f"NOT VERIFIED: with so many ranks that takes about {duration(seconds)}; --verify does it"]
    right = "verified: at any speed, the result is right, without a deadlock and without a race"
    return (
        [right, "          sums go along the canonical tree: the same bits on any hosts"]
        if figures.canonical
        else [right]
    )


def _sizes(figures: PlanFigures) -> List[str]:
    rounds = "not known, as it was not verified" if figures.rounds is None else str(figures.rounds)
    lines = [f"rounds  {rounds}"]
    if figures.chunks:
        lines.append(f"chunks  {figures.chunks} of {bytes_text(figures.chunk_bytes)}")
        pieces = "one"
        if figures.pieces > 1:
            size = bytes_text(figures.line.piece_bytes)
            pieces = f"about {figures.pieces} of {size}, {figures.line.in_flight} at once; each runs the plan once"
        lines.append(f"pieces  {pieces}")
    return lines


def _table(figures: PlanFigures) -> List[str]:
    """Return a line for each dimension over which data moves, and their sum."""
    names = [f"between {dimension.name}" for dimension in figures.topology.dimensions]
    equal_counts = len({(rank.everybody, rank.dimensions) for rank in figures.ranks}) == 1
    if figures.verified:
        who = "each rank" if equal_counts else "least–most"
    else:
        who = f"rank {figures.ranks[0].rank}"
    rows = [(name, [rank.dimensions[d] for rank in figures.ranks]) for d, name in enumerate(names)]
    rows = [(name, counts) for name, counts in rows if any(count != Counts() for count in counts)]
    if not rows:
        return [f"{who}: nothing is sent, read or written"]
    everybody = [rank.everybody for rank in figures.ranks]
    columns = [name for name, (of, _) in _COLUMNS.items() if any(map(of, everybody))]
    cells = [[who, *columns]]
    cells += [[name, *(_cell(figures, column, counts) for column in columns)] for name, counts in rows]
    if len(rows) > 1:
        cells.append(["together", *(_cell(figures, column, everybody) for column in columns)])
    widths = [max(map(len, column)) for column in zip(*cells)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in cells
    ]


def _cell(figures: PlanFigures, column: str, counts: Sequence[Counts]) -> str:
    of, in_chunks = _COLUMNS[column]
    least, most = min(map(of, counts)), max(map(of, counts))
    texts = [bytes_text(n * figures.chunk_bytes) if in_chunks and n else str(n) for n in (least, most)]
    return ("-" if not most else texts[0]) if least == most else "–".join(texts)


def _paper(figures: PlanFigures) -> List[str]:
    if figures.paper is None or figures.topology.size == 1:
        return []
    messages, nbytes = figures.paper
    moved = [rank.everybody.chunks_sent + rank.everybody.chunks_direct for rank in figures.ranks]
    least, most = (bytes_text(n * figures.chunk_bytes) for n in (min(moved), max(moved)))
    here = least if least == most else f"{least} to {most}"
    return [
        "",
        f"A multi-ring by the paper's formulas: {messages} messages, {bytes_text(nbytes)}. "
        f"Here sent, read and written: {here}.",
    ]


def steps_lines(plan: Plan, proof: Optional[Proof]) -> List[str]:
    """Return a table of a plan's steps; column ``round``: the rounds that must be over before the step is done."""
    lines = ["", f"rank {plan.rank}:", "step  round  what"]
    for channel, steps in enumerate(plan.channels):
        for index, step in enumerate(steps):
            depth = str(proof.depths[plan.rank][channel][index]) if proof else "?"
            lines.append(f"{index:4}  {depth:>5}  {step_text(step)}")
    return lines
