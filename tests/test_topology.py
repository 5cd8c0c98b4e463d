"""Topology: coordinates and ranks are one another's inverse, groups differ in one coordinate, and errors say why."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl.errors import ConfigError, InvalidArgument
from ddl.topology import Dimension, Link, Topology


@st.composite
def shuffled(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    shared = draw(st.integers(0, len(sizes)))
    topology = Topology.parse("x".join(map(str, sizes)), shared=shared)
    return topology.with_order(draw(st.permutations(range(topology.size))))


@given(shuffled())
def test_coordinates_and_ranks_are_inverse(topology):
    seen = set()
    for rank in range(topology.size):
        coordinates = topology.coordinates(rank)
        seen.add(coordinates)
        assert topology.rank_at(coordinates) == rank
        assert topology.order[topology.position(rank)] == rank
    assert seen == set(itertools.product(*(range(d.size) for d in topology.dimensions)))


@given(shuffled())
def test_a_group_differs_in_one_coordinate(topology):
    for rank in range(topology.size):
        own = topology.coordinates(rank)
        for dimension, d in enumerate(topology.dimensions):
            group = topology.group(rank, dimension)
            expected = [own[:dimension] + (c,) + own[dimension + 1 :] for c in range(d.size)]
            assert [topology.coordinates(other) for other in group] == expected


@given(shuffled())
def test_the_local_group_shares_all_other_coordinates(topology):
    shared = sum(d.shared for d in topology.dimensions)
    for rank in range(topology.size):
        outer = topology.coordinates(rank)[shared:]
        same = {other for other in range(topology.size) if topology.coordinates(other)[shared:] == outer}
        group = topology.local_group(rank)
        assert set(group) == same
        assert len(group) == topology.local_size
        assert list(group) == sorted(group, key=topology.position)


def test_parse_reads_a_mode_string():
    topology = Topology.parse("4x2x3", shared=1, size=24)
    assert str(topology) == "4x2x3"
    assert topology.size == 24
    assert [d.size for d in topology.dimensions] == [4, 2, 3]
    assert [d.name for d in topology.dimensions] == ["ranks", "hosts", "racks"]
    assert [d.shared for d in topology.dimensions] == [True, False, False]
    assert topology.order == tuple(range(24))
    assert topology.coordinates(1 + 4 * (1 + 2 * 2)) == (1, 1, 2)
    assert str(Topology.parse("6X2x1x1x1")) == "6x2x1x1x1"


def test_flat_is_one_dimension():
    assert str(Topology.flat(5)) == "5"
    assert Topology.flat(5).local_group(3) == (3,)
    assert Topology.flat(5, shared=True).local_group(3) == (0, 1, 2, 3, 4)


def test_equal_topologies_are_one_cache_key():
    assert hash(Topology.parse("2x3")) == hash(Topology.parse("2x3"))
    assert Topology.parse("2x3") != Topology.parse("3x2")
    assert Topology.parse("2x3") != Topology.parse("2x3", shared=1)


@pytest.mark.parametrize("text", ["", "x", "4x", "x4", "4xx2", "4x-2", "4 x 2", "4x2.0", "p:4x2", "٤x2"])
def test_parse_refuses_what_is_no_mode_string(text):
    with pytest.raises(ConfigError, match="not sizes joined by 'x'") as caught:
        Topology.parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["0", "4x0", "9999999999"])
def test_parse_refuses_impossible_sizes(text):
    with pytest.raises(ConfigError, match="not a possible size"):
        Topology.parse(text)


def test_a_product_that_does_not_match_names_both_numbers():
    with pytest.raises(ConfigError, match="'4x2'.*multiply to 8, but the job has 6 ranks"):
        Topology.parse("4x2", size=6)
    with pytest.raises(ConfigError, match="4x2.*multiply to 8, but 6 ranks"):
        Topology.parse("4x2").with_order(range(6))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Topology((), ()), "at least one dimension"),
        (lambda: Topology.flat(3).with_order((0, 1, 1)), "not a permutation of 0..2"),
        (lambda: Topology.flat(3).with_order((0, 1, 3)), "not a permutation of 0..2"),
        (lambda: Topology((Dimension("a", 1), Dimension("b", 2, shared=True)), (0, 1)), "must be the innermost"),
        (lambda: Dimension("a", 0), "size 0"),
        (lambda: Topology.parse("2x2", shared=3), "3 shared dimensions"),
        (lambda: Link(1e-6, 0.0), "bandwidth > 0"),
    ],
)
def test_a_wrong_topology_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t.coordinates(6),
        lambda t: t.position(-1),
        lambda t: t.rank_at((0,)),
        lambda t: t.rank_at((2, 0)),
        lambda t: t.group(0, 2),
    ],
)
def test_asking_for_what_is_not_there(ask):
    with pytest.raises(InvalidArgument, match="2x3"):
        ask(Topology.parse("2x3"))
