"""The drawing of a plan: everything is inside the image, nothing half upon another, and what happens is there."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Dict, Iterator, List, Tuple

import pytest
from plan.cases import PAIRS, plans_of, roots, suits

from ddl.plan import Collective
from ddl.plan.draw import draw
from ddl.plan.svg import width_of
from ddl.plan.verify import verify
from ddl.topology import Topology

SVG = "{http://www.w3.org/2000/svg}"
ALLREDUCE = Collective.ALLREDUCE
#: Left, upper, right and lower ends.
Area = Tuple[float, float, float, float]


def drawn(
    collective: Collective, algorithm: str, topology: Topology, root: int = 0, focus: int = 0
) -> ElementTree.Element:
    plans = plans_of(collective, algorithm, topology, root)
    return ElementTree.fromstring(draw(plans, verify(plans), topology, focus=focus, subtitle="buffers of 64 MiB"))


def numbers(element: ElementTree.Element, *keys: str) -> List[float]:
    return [float(element.attrib[key]) for key in keys]


def words(element: ElementTree.Element) -> str:
    return element.text or element[0].tail or ""


def texts(drawing: ElementTree.Element) -> List[str]:
    return [words(element) for element in drawing.iter(f"{SVG}text")]


def colored(drawing: ElementTree.Element, tag: str, key: str, color: str) -> List[ElementTree.Element]:
    return [element for element in drawing.iter(f"{SVG}{tag}") if element.attrib.get(key) == color]


def areas(drawing: ElementTree.Element) -> Iterator[Tuple[str, Area]]:
    """All that is drawn but the background; a text as wide as it may be."""
    for element in list(drawing.iter())[3:]:
        tag = element.tag[len(SVG) :]
        if tag == "rect":
            x, y, w, h = numbers(element, "x", "y", "width", "height")
            yield tag, (x, y, x + w, y + h)
        elif tag == "line":
            x1, y1, x2, y2 = numbers(element, "x1", "y1", "x2", "y2")
            yield tag, (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        elif tag == "circle":
            x, y, r = numbers(element, "cx", "cy", "r")
            yield tag, (x - r, y - r, x + r, y + r)
        elif tag == "polygon":
            points = [tuple(map(float, point.split(","))) for point in element.attrib["points"].split()]
            yield tag, (*map(min, zip(*points)), *map(max, zip(*points)))  # type: ignore[misc]
        elif tag == "text" and words(element):
            x, y, size = numbers(element, "x", "y", "font-size")
            wide = width_of(words(element), size, bold="font-weight" in element.attrib)
            left = x - {"start": 0, "middle": wide / 2, "end": wide}[element.attrib["text-anchor"]]
            yield tag, (left, y - 0.8 * size, left + wide, y + 0.2 * size)


def apart(area: Area, other: Area) -> bool:
    return area[2] <= other[0] or other[2] <= area[0] or area[3] <= other[1] or other[3] <= area[1]


def inside(area: Area, other: Area) -> bool:
    return area[0] >= other[0] and area[1] >= other[1] and area[2] <= other[2] and area[3] <= other[3]


def check(drawing: ElementTree.Element) -> None:
    width, height = numbers(drawing, "width", "height")
    tagged = list(areas(drawing))
    for tag, area in tagged:
        assert inside(area, (0, 0, width, height)), (tag, area)
    for kind in ("rect", "text"):
        places = [area for tag, area in tagged if tag == kind]
        for number, place in enumerate(places):
            for other in places[:number]:
                nested = kind == "rect" and (inside(place, other) or inside(other, place))
                assert apart(place, other) or nested, (kind, place, other)


@pytest.mark.few(280)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("text", ["1", "2", "5", "3x4", "2x1x3", "2x2x2x2"])
@pytest.mark.parametrize("shared", [0, 1])
def test_nothing_is_outside_or_half_upon_another(
    collective: Collective, algorithm: str, text: str, shared: int
) -> None:
    topology = Topology.parse(text, shared=shared)
    if not suits(algorithm, topology):
        return
    root = roots(collective, topology.size)[-1]
    check(drawn(collective, algorithm, topology, root, root))


@pytest.mark.parametrize(
    ("text", "algorithm", "shared", "focus"),
    [
        ("4x8x2", "multiring", 1, 0),
        ("4x8x2", "multiring", 2, 63),
        ("4x8", "multiring", 1, 0),
        ("64", "ring", 0, 5),
        ("20", "direct", 1, 7),
        ("48", "recursive_doubling", 0, 47),
        ("2x3x2x2x2", "multiring", 0, 0),
        ("40", "tree", 0, 1),
    ],
)
def test_large_ones(text: str, algorithm: str, shared: int, focus: int) -> None:
    check(drawn(ALLREDUCE, algorithm, Topology.parse(text, shared=shared), focus=focus))


@pytest.mark.parametrize("focus", [0, 17])
def test_an_all_to_all_of_many_ranks(focus: int) -> None:
    check(drawn(Collective.ALLTOALL, "ring", Topology.flat(40), focus=focus))


ORANGE, BLUE, PALE_BLUE, GREEN = "#c05621", "#2b6cb0", "#a9c9e8", "#2f855a"


def test_a_ring_of_three_hosts() -> None:
    drawing = drawn(ALLREDUCE, "ring", Topology.parse("1x3"))
    # Six messages are reduced, with a dot; six are stored, with a head. The legend has a line of the colour, too, and
    # there is one above the columns of either half.
    assert len(colored(drawing, "circle", "fill", ORANGE)) == 6
    assert len(colored(drawing, "polygon", "fill", ORANGE)) == 6
    assert len(colored(drawing, "line", "stroke", ORANGE)) == 6 + 6 + 1 + 2
    shown = texts(drawing)
    assert [shown.count(str(chunk)) for chunk in range(3)] == [4, 4 + 1, 4 + 1]  # rounds are numbered as well
    assert {"host 0", "rank 2", "reduce: hosts", "copy: hosts", "round", "allreduce by ring on 1x3"} <= set(shown)


def test_shared_memory() -> None:
    """Two ranks on each of two hosts: each reads and writes its neighbour's memory once; the hosts are shaded."""
    drawing = drawn(ALLREDUCE, "multiring", Topology.parse("2x2", shared=1))
    shown = texts(drawing)
    assert [shown.count(text) for text in ("Σ 0–1", "Σ 2–3", "→ 0–1", "→ 2–3", "meet")] == [2, 2, 2, 2, 2]
    assert len(colored(drawing, "line", "stroke", PALE_BLUE)) == 4 + 4
    assert len(colored(drawing, "rect", "fill", "#eaf2fb")) == 2
    assert {"reduce: memory", "reduce: hosts", "copy: hosts", "copy: memory"} <= set(shown)
    assert not any(text.startswith("Not drawn") for text in shown)


def test_messages_have_the_colour_of_the_outermost_dimension_that_they_cross() -> None:
    """A ring over 2x2x2 that takes the ranks in order crosses racks twice, hosts twice, and neither four times."""
    drawing = drawn(Collective.ALLGATHER, "ring", Topology.parse("2x2x2"))
    heads: Dict[str, int] = {c: len(colored(drawing, "polygon", "fill", c)) for c in (BLUE, ORANGE, GREEN)}
    assert heads == {BLUE: 4 * 7, ORANGE: 2 * 7, GREEN: 2 * 7}


def test_what_is_left_out_is_said() -> None:
    shown = texts(drawn(ALLREDUCE, "multiring", Topology.parse("4x8x2", shared=1)))
    assert "Not drawn: 52 of 64 ranks (drawn: rank 0 and ranks in line with it) and rounds 4–7, 13–15 of 18." in shown
    assert {"4–7", "13–15", "message of a rank that is not drawn", "rank 32"} <= set(shown) and "rank 5" not in shown


def test_the_same_plan_gives_the_same_picture() -> None:
    topology = Topology.parse("2x3", shared=1)
    plans = plans_of(ALLREDUCE, "multiring", topology)
    assert draw(plans, verify(plans), topology) == draw(plans, verify(plans), topology)


def test_other_orders_of_ranks() -> None:
    topology = Topology.parse("2x3", shared=1).with_order((5, 3, 1, 0, 2, 4))
    drawing = drawn(ALLREDUCE, "multiring", topology)
    check(drawing)
    assert [text for text in texts(drawing) if text.startswith("rank ")] == [f"rank {r}" for r in topology.order]
