"""``ddl topo``: the rails among the links, the tree, and a drawing in which nothing lies outside or upon another."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import List, Tuple

import pytest

from ddl.net.interfaces import Interface
from ddl.plan.step_text import ranks_text
from ddl.plan.svg import shortened
from ddl.tools import cli
from ddl.tools.doctor.facts import Facts, HostFacts, HostLink, Local
from ddl.tools.doctor.rails import rails_of
from ddl.tools.topo.drawing import draw
from ddl.tools.topo.tree import tree

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def facts_of(hosts: int, ranks: int = 2, rails: int = 2, name: str = "node{}") -> Facts:
    numbers = range(hosts)
    described = []
    for host in numbers:
        interfaces = tuple(Interface(f"eth{rail}", f"10.1.{rail}.{host + 1}") for rail in range(rails))
        local = Local(name=name.format(host), version="1", python="3.11", interfaces=interfaces)
        local = dataclasses.replace(local, chosen=interfaces[0].address)
        described.append(HostFacts(host, local.name, tuple(range(host * ranks, (host + 1) * ranks)), local=local))
    links = [
        HostLink(
            source,
            target,
            f"10.1.{rail}.{target + 1}",
            f"eth{rail}",
            f"eth{rail}",
            latency=2e-5,
            bandwidth=1e10 / (rail + 1),
        )
        for source in numbers
        for target in numbers
        if source != target
        for rail in range(rails)
    ]
    return Facts(tuple(described), tuple(links), groups=tuple(host.ranks for host in described))


def drawn(facts: Facts) -> ElementTree.Element:
    return ElementTree.fromstring(draw(facts, rails_of(facts)))


def texts(drawing: ElementTree.Element) -> List[str]:
    return [element.text or element[0].tail or "" for element in drawing.iter(f"{SVG}text")]


def boxes(drawing: ElementTree.Element) -> List[Tuple[float, float, float, float]]:
    """Left, upper, right and lower ends of all boxes but the background."""
    rectangles = []
    for element in list(drawing.iter(f"{SVG}rect"))[1:]:
        x, y, w, h = (float(element.attrib[key]) for key in ("x", "y", "width", "height"))
        rectangles.append((x, y, x + w, y + h))
    return rectangles


@pytest.mark.parametrize("hosts", range(1, 17))
def test_nothing_is_outside_or_half_upon_another(hosts: int) -> None:
    drawing = drawn(facts_of(hosts, ranks=1 + hosts % 9, rails=1 + hosts % 3))
    width, height = float(drawing.attrib["width"]), float(drawing.attrib["height"])
    rectangles = boxes(drawing)
    for left, top, right, bottom in rectangles:
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
    for box in rectangles:
        for other in rectangles:
            apart = box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
            inside = box[0] >= other[0] and box[1] >= other[1] and box[2] <= other[2] and box[3] <= other[3]
            around = other[0] >= box[0] and other[1] >= box[1] and other[2] <= box[2] and other[3] <= box[3]
            assert apart or inside or around
    for element in drawing.iter(f"{SVG}line"):
        assert all(0 <= float(element.attrib[key]) <= width for key in ("x1", "x2"))
        assert all(0 <= float(element.attrib[key]) <= height for key in ("y1", "y2"))
    shown = texts(drawing)
    assert [name for name in (f"node{host}" for host in range(hosts)) if name not in shown] == []
    assert sum(text.startswith("share memory") for text in shown) == (hosts if 1 + hosts % 9 > 1 else 0)


def test_text_is_escaped() -> None:
    facts = facts_of(2, name='<a&b"{}>')
    facts = dataclasses.replace(facts, hosts=(facts.hosts[0], HostFacts(1, "<gone>", (2, 3), problem='"&<')))
    shown = texts(drawn(facts))
    assert '<a&b"0>' in shown and "<gone>" in shown and "not there" in shown


def test_many_ranks_become_one_box() -> None:
    shown = texts(drawn(facts_of(2, ranks=64)))
    assert {"ranks 0–63", "ranks 64–127"} <= set(shown)


def test_domains_are_left_out_unless_they_tell_hosts_apart() -> None:
    assert "a0" in texts(drawn(facts_of(2, name="a{}.example.org")))
    assert "n.x0" in texts(drawn(facts_of(2, name="n.x{}")))


def test_what_does_not_work_shows() -> None:
    facts = facts_of(3)
    links = tuple(
        dataclasses.replace(link, problem="timeout", latency=None, bandwidth=None)
        if link.interface == "eth1" and 2 in (link.source, link.target)
        else link
        for link in facts.links
    )
    facts = dataclasses.replace(facts, links=links)
    assert [rail.is_cut_off(2) for rail in rails_of(facts)] == [False, True]
    shown = texts(drawn(facts))
    assert shown.count("timeout") == 4 and shown.count("✕") == 1


def test_rails_are_networks_and_the_used_one_comes_first() -> None:
    facts = facts_of(2, rails=1)
    other = HostLink(0, 1, "10.0.0.2", "a0", "a0", latency=1e-3, bandwidth=1e9)
    hosts = []
    for host in facts.hosts:
        assert host.local is not None
        more = (Interface("docker0", "172.17.0.1", 16), Interface("a0", f"10.0.0.{host.number + 1}", 8))
        changed = dataclasses.replace(host.local, interfaces=(*host.local.interfaces, *more))
        hosts.append(dataclasses.replace(host, local=changed))
    facts = dataclasses.replace(facts, hosts=tuple(hosts), links=(*facts.links, other))
    names = [(rail.name, rail.network, rail.used) for rail in rails_of(facts)]
    assert names == [("eth0", "10.1.0.0/24", True), ("a0", "10.0.0.0/8", False)]
    assert not rails_of(dataclasses.replace(facts, links=()))


def test_the_tree() -> None:
    facts = facts_of(2, ranks=3)
    facts = dataclasses.replace(facts, groups=((0, 1), (2,), (3, 4, 5)))
    lines = tree(facts, rails_of(facts))
    assert lines[0] == "2 hosts, 6 ranks"
    assert lines[2:7] == [
        "node0: 8 cores, 2 for a large operation of each rank, DDL 1, Python 3.11",
        "├─ ranks 0, 1 share memory (proved)",
        "├─ rank 2",
        "├─ eth0 10.1.0.1/24, MTU 1500, data",
        "└─ eth1 10.1.1.1/24, MTU 1500",
    ]
    assert lines[-2:] == ["eth0 10.1.0.0/24 (data): 20 µs, 10 Gb/s", "eth1 10.1.1.0/24: 20 µs, 5 Gb/s"]
    unknown = tree(dataclasses.replace(facts, groups=None), [])
    assert "├─ ranks 0–2: who shares memory could not be found out" in unknown
    assert [ranks_text(ranks) for ranks in ((3,), (0, 1), (4, 5, 6), (1, 3))] == [
        "rank 3",
        "ranks 0, 1",
        "ranks 4–6",
        "ranks 1, 3",
    ]


def test_long_texts_are_shortened() -> None:
    assert shortened("short", 10, 100) == "short"
    assert shortened("a" * 50, 10, 60) == "a" * 9 + "…"


def test_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts, drawing = tmp_path / "facts.json", tmp_path / "hosts.svg"
    facts.write_text(json.dumps({"facts": facts_of(3).to_json()}))
    assert cli.main(["topo", "--from", str(facts), "--svg", str(drawing)]) == 0
    assert "node2" in capsys.readouterr().out and drawing.read_text().startswith("<svg")
    facts.write_text('{"facts": {"hosts": 3}}')
    assert cli.main(["topo", "--from", str(facts)]) == 2
    assert "cannot be read as facts" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
def test_this_machine(tmp_path: Path) -> None:
    """Without hosts: ranks here, which share memory. Nothing but JSON on standard output where that is asked for."""
    program = [sys.executable, "-m", "ddl.tools"]
    options = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run([*program, "topo", "-np", "3"], **options)
    assert done.returncode == 0, done.stderr
    assert "├─ ranks 0–2 share memory (proved)" in done.stdout
    done = subprocess.run([*program, "doctor", "--json", "-"], **options)
    answer = json.loads(done.stdout)
    assert answer["facts"]["groups"] == [[0, 1]]
    errors = [verdict for verdict in answer["verdicts"] if verdict["level"] == "error"]
    assert (done.returncode, errors) == (0, [])
