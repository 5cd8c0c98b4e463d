"""Racks that are inferred from the rates of pairs of hosts are the real ones, or none: whatever the cluster."""

from __future__ import annotations

from itertools import combinations
from typing import List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning.switched import rates

from ddl.errors import ConfigError
from ddl.topology import Topology
from ddl.tuning.racks import RackGuess, Racks, suspect, tournaments
from ddl.tuning.tournament import tournament

NOISE = 0.3  #: a rate under load is up to so much below what it should be
Groups = Tuple[Tuple[int, ...], ...]


@given(st.integers(0, 40))
def test_in_a_tournament_all_meet_once_and_nobody_two_at_a_time(players: int) -> None:
    played = tournament(range(players))
    assert sorted(tuple(sorted(pair)) for pairs in played for pair in pairs) == list(combinations(range(players), 2))
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in played)


def test_tournaments_are_shuffled_differently_and_always_alike() -> None:
    played = tournaments(6, 3)
    assert played == tournaments(6, 3) and [len(rounds) for rounds in played] == [5, 5, 5]
    assert len({frozenset(map(frozenset, pairs)) for rounds in played for pairs in rounds}) > 5


def groups_of(rack_of: List[int]) -> Groups:
    members = [tuple(host for host, rack in enumerate(rack_of) if rack == number) for number in sorted(set(rack_of))]
    return tuple(sorted(members))


def measured(draw: st.DrawFn, rack_of: List[int], uplinks: List[float], least: int, noise: float) -> np.ndarray:
    random = draw(st.randoms(use_true_random=False))
    return rates(rack_of, uplinks, draw(st.integers(least, 8)), lambda: 1 - noise * random.random())


@st.composite
def clusters(draw: st.DrawFn) -> Tuple[np.ndarray, Groups, bool]:
    """Any racks, in any order of hosts, behind any uplinks: what pairs got, and whether the racks are all alike."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5).filter(lambda sizes: 4 <= sum(sizes) <= 16))
    if draw(st.booleans()):
        sizes = [sizes[0]] * (max(4 // sizes[0], len(sizes)) + 1)
    rack_of = draw(st.permutations([rack for rack, size in enumerate(sizes) for _ in range(size)]))
    uplink = st.floats(0.1, 8)
    same = draw(st.booleans())
    uplinks = [draw(uplink)] * len(sizes) if same else [draw(uplink) for _ in sizes]
    return measured(draw, rack_of, uplinks, 2, NOISE), groups_of(rack_of), len({*sizes}) == len({*uplinks}) == 1


@pytest.mark.slow
@given(clusters())
def test_what_is_found_is_what_is_there(cluster: Tuple[np.ndarray, Groups, bool]) -> None:
    """Racks that differ may be joined, as two whose uplinks are wide enough; no rack is ever torn apart."""
    measured, groups, alike = cluster
    suspicion = suspect(measured)
    if suspicion is not None and alike:
        assert suspicion.groups == groups
    elif suspicion is not None:
        assert all(any(set(group) <= set(suspected) for suspected in suspicion.groups) for group in groups)


@st.composite
def crowded(draw: st.DrawFn) -> Tuple[np.ndarray, Groups]:
    """Even racks whose uplinks carry a quarter of what their hosts send, or less; all pairs met four times or more."""
    count, hosts = draw(st.sampled_from([(2, 2), (2, 4), (3, 2), (3, 4), (4, 2), (4, 4), (2, 8)]))
    rack_of = draw(st.permutations([rack for rack in range(count) for _ in range(hosts)]))
    uplinks = [hosts * draw(st.floats(0.02, 0.25))] * count
    return measured(draw, rack_of, uplinks, 4, 0.15), groups_of(rack_of)


@given(crowded())
def test_clear_racks_are_found(cluster: Tuple[np.ndarray, Groups]) -> None:
    measured, groups = cluster
    suspicion = suspect(measured)
    assert suspicion is not None and suspicion.groups == groups
    assert suspicion.between_bytes_per_s < suspicion.within_bytes_per_s <= 1


@given(st.data(), st.integers(4, 12))
def test_one_switch_is_no_rack(data: st.DataObject, hosts: int) -> None:
    assert suspect(measured(data.draw, [0] * hosts, [0.0], 1, NOISE)) is None


@pytest.mark.slow
@given(crowded(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_does_not_matter(cluster: Tuple[np.ndarray, Groups], random) -> None:
    measured, groups = cluster
    order = list(range(len(measured)))
    random.shuffle(order)
    again = suspect(measured[np.ix_(order, order)])
    assert again is not None
    assert tuple(sorted(tuple(sorted(order[host] for host in group)) for group in again.groups)) == groups


def test_a_host_with_a_slower_port_is_no_rack() -> None:
    measured = np.ones((4, 4))
    measured[0] = measured[:, 0] = 0.1
    assert suspect(measured) is None


def test_racks_cut_the_outermost_dimension() -> None:
    hosts = Topology.parse("2x4", shared=1)
    racks = hosts.in_racks(((0, 2), (1, 3)))
    assert str(racks) == "2x2x2" and racks.local_size == 2
    assert racks.order == (0, 1, 4, 5, 2, 3, 6, 7)
    assert racks.group(0, 1) == (0, 4) and racks.group(0, 2) == (0, 2)
    assert str(Topology.flat(6).in_racks(((5, 1, 0), (2, 3, 4)))) == "3x2"


@pytest.mark.parametrize("racks", [((0, 1), (2, 2)), ((0, 1), (2,)), ((0, 1, 2), (3,)), ((1, 2), (3, 4)), ()])
def test_racks_that_are_no_equal_parts_are_refused(racks: Groups) -> None:
    with pytest.raises(ConfigError, match="no equal parts"):
        Topology.flat(4).in_racks(racks)


def test_racks_are_told_by_their_hosts_names() -> None:
    known = ((0, 2), (1, 3)), 64 << 20, 16 << 20
    hosts = ("a:2", "b:2", "c:2", "d:2")
    text = "racks a c | b d: 64 MiB/s within and 16 MiB/s between them while all hosts send at once"
    assert RackGuess(*known).text(hosts) == text
    assert Racks(*known, 1 << 20, 0.1, 0.2).text(hosts) == f"{text}; allreduce of 1 MiB 100 ms, without racks 200 ms"
