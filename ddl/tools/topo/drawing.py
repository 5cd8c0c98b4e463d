"""Draws facts: hosts as boxes with their ranks, rails as lines beneath or between them, and below a table of all links.

Up to eight hosts stand in a row above the rails; more stand half above and half below them. What was measured between
each pair of hosts is in the table, as a line per pair would be a thicket from five hosts on. All sizes are in pixels.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence, Tuple

from ddl.plan.step_text import ranks_text
from ddl.plan.svg import Pen, shortened, width_of
from ddl.tools.doctor.facts import Facts, HostFacts, HostLink
from ddl.tools.doctor.phrases import counted, duration, rate
from ddl.tools.doctor.rails import Rail
from ddl.tools.topo.tree import groups_of, measured

__all__ = ["draw"]

_MARGIN, _GAP = 24, 20
_LEGEND = 256  # width of the rails' names, left of everything
_BOX, _HEAD = 172, 50  # a host's width, and the height of its name and address
_RANK_W, _RANK_H, _RANK_GAP, _PER_ROW = 26, 20, 5, 5
_CAPTION = 15  # below a group
_MOST_RANKS = 20  # of a group, before they become one box
_RAIL = 40  # from one rail to the next
_IN_A_ROW = 8
_INK, _GREY, _BAD, _SHADE, _PAPER = "#1a202c", "#718096", "#c53030", "#dbe9f8", "#f7fafc"
_COLORS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568")


def draw(facts: Facts, rails: Sequence[Rail]) -> str:
    """Return the SVG document."""
    pen = Pen()
    hosts = list(facts.hosts)
    names = _short_names(hosts)
    columns = len(hosts) if len(hosts) <= _IN_A_ROW else (len(hosts) + 1) // 2
    left = _MARGIN + (_LEGEND if rails else 0.0)
    height = max(_host_height(facts, host) for host in hosts)
    title = f"{len(hosts)} host{'s' if len(hosts) > 1 else ''}, {facts.size} ranks"
    pen.text(_MARGIN, _MARGIN + 14, title, size=18, bold=True)
    top = _MARGIN + 36.0
    place: Dict[int, Tuple[float, float]] = {}  # upper left corners, by host's number
    below = top + height + (_RAIL * len(rails) + (_RAIL if len(hosts) > columns else 0) if rails else 0)
    for index, host in enumerate(hosts):
        row, column = divmod(index, columns)
        place[host.number] = (left + column * (_BOX + _GAP), below if row else top)
    bottom = (below + height) if len(hosts) > columns else below
    right = left + columns * (_BOX + _GAP) - _GAP
    first_rail = top + height + _RAIL
    for index, rail in enumerate(rails):
        shift = (index - (len(rails) - 1) / 2) * 16
        _draw_rail(pen, rail, index, first_rail + index * _RAIL, (left, right), place, (top + height, below), shift)
    for host in hosts:
        _draw_host(pen, facts, host, names[host.number], place[host.number], height)
    if rails:
        right, bottom = _draw_table(pen, hosts, names, rails, bottom + 3 * _GAP, right)
    right = max(right, _MARGIN + width_of(title, 18))
    return pen.document(right + _MARGIN, bottom + _MARGIN, title)


def _short_names(hosts: Sequence[HostFacts]) -> Dict[int, str]:
    """Return the names without user and domain, where they are still different then."""
    short = {host.number: host.name.rpartition("@")[2].partition(".")[0] for host in hosts}
    same = len(set(short.values())) < len(hosts) or any(name.isdigit() for name in short.values())  # or are addresses
    return {host.number: host.name for host in hosts} if same else short


def _host_height(facts: Facts, host: HostFacts) -> float:
    return _HEAD + sum(_group_height(group) + 6 for group, _ in groups_of(facts, host)) + 4


def _group_height(group: Sequence[int]) -> float:
    rows = 1 if len(group) > _MOST_RANKS else -(-len(group) // _PER_ROW)
    return rows * (_RANK_H + _RANK_GAP) + _RANK_GAP + _CAPTION


def _draw_host(pen: Pen, facts: Facts, host: HostFacts, name: str, corner: Tuple[float, float], height: float) -> None:
    x, y = corner
    there = host.local is not None
    pen.box(x, y, _BOX, height, fill=_PAPER, line=_INK if there else _BAD, round=8, dash="" if there else "5 4")
    pen.text(x + 10, y + 21, shortened(name, 14, _BOX - 16, bold=True), size=14, bold=True, hint=host.name)
    if host.local is None:
        pen.text(x + 10, y + 38, "not there", size=11, color=_BAD, hint=host.problem)
        return
    detail = f"{host.local.chosen}, {host.local.usable} cores"
    gpus = len(host.local.gpus.devices)
    detail += f", {counted(gpus, 'GPU')}" if gpus else ""
    pen.text(x + 10, y + 38, shortened(detail, 11, _BOX - 16), size=11, color=_GREY, hint=detail)
    at = y + _HEAD
    for group, shared in groups_of(facts, host):
        _draw_group(pen, group, shared, facts.groups is not None, x + 6, at)
        at += _group_height(group) + 6


def _draw_group(pen: Pen, group: Sequence[int], shared: bool, known: bool, x: float, y: float) -> None:
    height = _group_height(group)
    if shared:
        pen.box(x, y, _BOX - 12, height, fill=_SHADE, round=6)
    if len(group) > _MOST_RANKS:
        pen.box(x + 6, y + _RANK_GAP, _BOX - 24, _RANK_H, fill="#ffffff", line=_INK)
        pen.text(x + _BOX / 2 - 6, y + _RANK_GAP + 14, ranks_text(group), size=11, anchor="middle")
    else:
        for index, rank in enumerate(group):
            row, column = divmod(index, _PER_ROW)
            left = x + 6 + column * (_RANK_W + _RANK_GAP)
            above = y + _RANK_GAP + row * (_RANK_H + _RANK_GAP)
            pen.box(left, above, _RANK_W, _RANK_H, fill="#ffffff", line=_INK, round=3)
            pen.text(left + _RANK_W / 2, above + 14, str(rank), size=11, anchor="middle")
    caption = "share memory (proved)" if shared else ("" if known else "shared memory: not known")
    if caption:
        pen.text(x + 6, y + height - 5, caption, size=9, color=_GREY)


def _draw_rail(
    pen: Pen,
    rail: Rail,
    index: int,
    y: float,
    ends: Tuple[float, float],
    place: Dict[int, Tuple[float, float]],
    edges: Tuple[float, float],
    shift: float,
) -> None:
    """Draw a rail as a line, and a line from it to each host: to the lower edge of those above, the upper of others."""
    color = _COLORS[index % len(_COLORS)]
    pen.line(ends[0], y, ends[1], y, color=color, width=4 if rail.used else 2.5)
    for number in rail.members:
        x = place[number][0] + _BOX / 2 + shift
        edge = edges[1] if place[number][1] >= edges[1] else edges[0]
        if rail.is_cut_off(number):
            pen.line(x, edge, x, y, color=_BAD, dash="4 4")
            pen.text(x, y - 6 if edge < y else y + 16, "✕", size=14, color=_BAD, anchor="middle", bold=True)
        else:
            pen.line(x, edge, x, y, color=color)
            pen.dot(x, y, color=color)
    name = f"{rail.name} {rail.network}" + (" (data)" if rail.used else "")
    pen.text(_MARGIN, y - 3, shortened(name, 12, _LEGEND - 8, bold=True), color=color, bold=True, hint=name)
    detail = measured(rail)
    pen.text(_MARGIN, y + 12, shortened(detail, 11, _LEGEND - 4), size=11, hint=detail)


def _draw_table(
    pen: Pen, hosts: Sequence[HostFacts], names: Dict[int, str], rails: Sequence[Rail], y: float, right: float
) -> Tuple[float, float]:
    """Draw what was measured from each host (row) to each other one (column); return the right and lower ends."""
    there = [host for host in hosts if host.local is not None]
    left = min(150.0, max(width_of(names[host.number], 11, bold=True) for host in there) + 12)
    wide, high = 112, 15 * len(rails) + 9
    pen.text(
        _MARGIN,
        y,
        "From each host (row) to each other one (column): latency one way, bandwidth of one connection",
        size=12,
    )
    y += 14
    for column, host in enumerate(there):
        x = _MARGIN + left + column * wide
        pen.text(
            x + wide / 2,
            y + 12,
            shortened(names[host.number], 11, wide, bold=True),
            size=11,
            bold=True,
            anchor="middle",
        )
    y += 20
    for row, source in enumerate(there):
        above = y + row * high
        pen.text(
            _MARGIN, above + high / 2 + 4, shortened(names[source.number], 11, left, bold=True), size=11, bold=True
        )
        for column, target in enumerate(there):
            x = _MARGIN + left + column * wide
            if source is target:
                pen.box(x, above, wide - 3, high - 3, fill="#edf2f7", round=2)
                continue
            links = [(rail, index, rail.links.get((source.number, target.number))) for index, rail in enumerate(rails)]
            pen.box(x, above, wide - 3, high - 3, fill=_cell_color([(rail, link) for rail, _, link in links]), round=2)
            for line, (_, index, link) in enumerate(links):
                color = _COLORS[index % len(_COLORS)]
                pen.text(
                    x + (wide - 3) / 2, above + 14 + 15 * line, _cell_text(link), size=10, color=color, anchor="middle"
                )
    end = _MARGIN + left + len(there) * wide
    return max(right, end, _MARGIN + 610), y + len(there) * high


def _cell_text(link: Optional[HostLink]) -> str:
    if link is None:
        return "–"
    if link.problem or link.latency is None or link.bandwidth is None:
        return link.problem[:16] or "stalls"
    return f"{duration(link.latency)}, {rate(link.bandwidth)}"


def _cell_color(links: Sequence[Tuple[Rail, Optional[HostLink]]]) -> str:
    """Red where something does not work, orange where it is less than half of what is usual on the rail."""
    worst = "#f0fff4"
    for rail, link in links:
        if link is not None and (link.problem or link.bandwidth is None):
            return "#fed7d7"
        if link is not None and link.bandwidth is not None and link.bandwidth < (rail.bandwidth or 0.0) / 2:
            worst = "#feebc8"
    return worst
