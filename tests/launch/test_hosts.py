"""Host lists, hostfiles, Slurm's lists, and where ranks are placed."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import pytest

from ddl.errors import ConfigError
from ddl.launch.ask.hosts import Host, expand_counts, expand_nodes, parse_hostfile, parse_hosts
from ddl.launch.ask.layout import arrange
from ddl.launch.ask.placement import UNPLACED, parse_rankfile, place


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:4,b:4", [Host("a", 4), Host("b", 4)]),
        ("a,b", [Host("a"), Host("b")]),
        ("a:2,b:1,a:2", [Host("a", 4), Host("b", 1)]),
        ("user@a.example.org:2", [Host("user@a.example.org", 2)]),
        ("10.0.0.1:2,[fe80::1]:3", [Host("10.0.0.1", 2), Host("[fe80::1]", 3)]),
        ("[fe80::1%eth0]", [Host("[fe80::1%eth0]")]),
    ],
)
def test_hosts(text: str, hosts: List[Host]) -> None:
    assert list(parse_hosts(text)) == hosts


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "a host is missing"),
        ("a,,b", "a host is missing"),
        ("a:0", "'0' is not a number of slots"),
        ("a:", "'' is not a number of slots"),
        ("a:4x", "'4x' is not a number of slots"),
        ("a b", "'a b' is not the name of a host"),
        ("-oProxyCommand=x", "is not the name of a host"),
        ("-x", "is not the name of a host"),
        ("a;reboot", "is not the name of a host"),
        ("fd77::1:4", r"is not the name of a host; write an IPv6 address in brackets, \[fd77::1\]"),
        ("a:2,b", "some hosts have slots, but b has none"),
        ("a,b,a", "a stands there twice; write a:2"),
    ],
)
def test_bad_hosts(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_hosts(text)


def test_hostfiles_of_everybody() -> None:
    text = "# our cluster\na slots=4 max_slots=8\nb:4   # MPICH\n\nc 2\n"
    assert parse_hostfile(text, "hosts") == (Host("a", 4), Host("b", 4), Host("c", 2))
    assert parse_hostfile("a\nb\n", "hosts") == (Host("a"), Host("b"))
    for text, match in [
        ("# nothing\n", "hosts: there is no host in it"),
        ("a slots=4\nb slots=four\n", "hosts:2: 'slots=four': 'four' is not a number"),
        ("a:2 slots=2\n", "hosts:1: the slots of a stand there twice"),
        ("a some thing\n", "hosts:1: 'some': write 'host slots=N'"),
        ("a lots=1\n", "hosts:1: 'lots=1': a hostfile has no 'lots' .did you mean 'slots'..; write 'host slots=N'"),
        ("a slots=1\nb slots=1 port=22\n", "hosts:2: 'port=22': a hostfile has no 'port'; write"),
        ("a slots=1\nb\n", "hosts: some hosts have slots, but b has none"),
    ]:
        with pytest.raises(ConfigError, match=match):
            parse_hostfile(text, "hosts")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hostA,hostB", ["hostA", "hostB"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("n[08-11,3],x", ["n08", "n09", "n10", "n11", "n3", "x"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_node_lists(text: str, names: List[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize("text", ["", "a,", "n[1", "n]1[", "n[a-c]", "n[3-1]", "n[]", "n[0-99999999]"])
def test_bad_node_lists(text: str) -> None:
    with pytest.raises(ConfigError):
        expand_nodes(text)


def test_counts() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ConfigError, match="'x' is not a count"):
        expand_counts("2,x")


@pytest.mark.parametrize(
    ("hosts", "num_proc", "placed"),
    [
        ([Host("a", 4), Host("b", 4)], 8, "a:4,b:4"),
        ([Host("a", 4), Host("b", 4)], 5, "a:4,b:1"),
        ([Host("a", 4), Host("b", 4)], 4, "a:4"),  # a host without ranks has no part in the job
        ([Host("a", 2), Host("b", 3)], None, "a:2,b:3"),
        ([Host("a"), Host("b")], 5, "a:3,b:2"),
    ],
)
def test_placement(hosts: Sequence[Host], num_proc: Optional[int], placed: str) -> None:
    placement = place(hosts, num_proc)
    assert str(placement) == placed
    ranks = [rank for of_host in placement.ranks for rank in of_host]
    assert ranks == list(range(placement.size))
    assert all(rank in placement.ranks[placement.host_of(rank)] for rank in ranks)


def test_too_many_ranks_or_hosts() -> None:
    with pytest.raises(ConfigError, match="-np 9, but a:4,b:4 are 8 slots"):
        place([Host("a", 4), Host("b", 4)], 9)
    with pytest.raises(ConfigError, match="-np 1 is less than the 2 hosts"):
        place([Host("a"), Host("b")], 1)
    with pytest.raises(ConfigError, match="the number of ranks is missing"):
        place([Host("a"), Host("b")], None)


def test_rankfiles() -> None:
    text = "rank 0=a slot=0\nrank 1=b slot=0-1  # round robin\nrank 2=a slot=1:0\nrank 3=b\n"
    placement = parse_rankfile(text, "ranks")
    assert (placement.hosts, placement.ranks) == (("a", "b"), ((0, 2), (1, 3)))
    assert [placement.host_of(rank) for rank in range(4)] == [0, 1, 0, 1]
    for text, match in [
        ("rank 0=a\nrnk 1=b\n", "ranks:2: 'rnk 1=b': write 'rank N=HOST slot=S'"),
        ("rank 0=a\nrank 2=b\n", "every rank from 0 up once, but has \\[0, 2\\]"),
        ("", "but has none"),
    ]:
        with pytest.raises(ConfigError, match=match):
            parse_rankfile(text, "ranks")


AB = (Host("a", 2), Host("b", 2))


@pytest.mark.parametrize(
    ("given", "placed", "environ"),
    [
        ({"num_proc": 4}, "a:2,b:2", {}),
        ({"accelerators": 4}, "a:4,b:4", {}),
        ({"mode": "p:2x2"}, "a:2,b:2", {"DDL_TUNE_SECONDS": "4", "DDL_DIMENSIONS": "2x2"}),
        ({"mode": "p"}, "a:2,b:2", {"DDL_TUNE_SECONDS": "4"}),
        ({"mode": "r"}, "a:2,b:2", {"DDL_ALGORITHM": "ring"}),
        ({"mode": "r:4", "num_proc": 4}, "a:2,b:2", {"DDL_ALGORITHM": "ring", "DDL_DIMENSIONS": "4"}),
        ({"mode": "b:2x2x1"}, "a:2,b:2", {"DDL_DIMENSIONS": "2x2x1"}),
        ({"nodes": 2}, "a:2,b:2", {"DDL_DIMENSIONS": "2x2"}),
        ({"racks": 2}, "a:2,b:2", {"DDL_DIMENSIONS": "2x1x2"}),
        ({"nodes": 1, "racks": 1, "aisles": 2}, "a:2,b:2", {"DDL_DIMENSIONS": "2x1x1x2"}),
    ],
)
def test_layouts(given: Dict[str, Any], placed: str, environ: Dict[str, str]) -> None:
    layout = arrange(AB, None, **given)
    assert (str(layout.placement), layout.environ) == (placed, environ)
    assert layout.size == sum(int(part.split(":")[1]) for part in placed.split(","))


def test_one_machine_needs_a_number() -> None:
    assert arrange((), None, num_proc=3).placement is UNPLACED
    assert arrange((), None, accelerators=3).size == 3
    assert arrange((), None, num_proc=4, mode="2x2").environ == {"DDL_DIMENSIONS": "2x2"}
    with pytest.raises(ConfigError, match="the number of ranks is missing"):
        arrange((), None)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"mode": "p:3x2"}, "the dimensions 3x2 are 6 ranks, but the job has 4"),
        ({"mode": "c:2x2"}, "nothing here answers to 'c'; choose one of r, p, b, n"),
        ({"mode": "2,2"}, "--mode 2,2: write LETTER:SIZExSIZE"),
        ({"mode": "p:2x0"}, "a size of 0"),
        ({"nodes": 3}, "--nodes 3 x --racks 1 x --aisles 1 are 3 hosts, but the job has 2"),
        ({"mode": "2x2", "racks": 2}, "--mode says the dimensions, and so do --nodes"),
        ({"num_proc": 3, "racks": 2}, "as many ranks on every host, not a:2,b:1"),
    ],
)
def test_layouts_that_do_not_fit(given: Dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        arrange(AB, None, **given)


def test_a_rankfile_and_a_number() -> None:
    placement = parse_rankfile("rank 0=a\nrank 1=b\n", "ranks")
    assert arrange((), placement, num_proc=2).size == 2
    with pytest.raises(ConfigError, match="-np 3, but the rankfile places 2 ranks"):
        arrange((), placement, num_proc=3)
