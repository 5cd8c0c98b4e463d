"""What is chosen from measured times: never something slower than the default by more than noise explains."""

from __future__ import annotations

from typing import Dict, List, Tuple

from hypothesis import given
from hypothesis import strategies as st

from ddl import _core
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.candidates import MOST_SMALL, candidates, default_of, worth_trying
from ddl.tuning.choose import MARGIN, best, better_half, choose, lines_of
from ddl.tuning.select import ANY, MOST_IN_FLIGHT, Line, Lines, of_size, select

TRUE = st.floats(1e-6, 1.0)


@st.composite
def races(draw: st.DrawFn, noise: float) -> Tuple[List[float], int, List[Dict[int, List[float]]]]:
    """True times of some candidates, which is the default, and two series of rounds, each off by ``noise`` at most."""
    true = draw(st.lists(TRUE, min_size=1, max_size=8))
    default = draw(st.integers(0, len(true) - 1))
    count = draw(st.integers(1, 9))
    off = st.floats(1 - noise, 1 + noise)
    series = [
        {number: [seconds * draw(off) for _ in range(count)] for number, seconds in enumerate(true)} for _ in range(2)
    ]
    return true, default, series


@given(races(noise=0.3))
def test_the_choice_is_slower_than_the_default_by_no_more_than_noise(race) -> None:
    true, default, (first, second) = race
    chosen = choose(first, second, default)
    assert true[chosen] <= true[default] * (1 + 0.3) / (1 - 0.3) / (1 + MARGIN) * (1 + 1e-9) or chosen == default


@given(races(noise=MARGIN / 2.1))
def test_noise_below_half_the_margin_never_makes_it_slower(race) -> None:
    true, default, (first, second) = race
    assert true[choose(first, second, default)] <= true[default]


@given(races(noise=0.0))
def test_without_noise_the_fastest_wins_if_it_wins_by_the_margin(race) -> None:
    true, default, (first, second) = race
    chosen = choose(first, second, default)
    if min(true) * (1 + MARGIN) < true[default]:
        assert true[chosen] == min(true)
    else:
        assert chosen == default


@given(races(noise=0.5), st.randoms())
def test_the_order_in_which_ranks_hold_the_numbers_does_not_matter(race, random) -> None:
    _, default, (first, second) = race
    order = list(first)
    random.shuffle(order)
    mixed = [{number: series[number] for number in order} for series in (first, second)]
    assert choose(*mixed, default) == choose(first, second, default)


def test_a_tie_and_an_unconfirmed_win_leave_the_default() -> None:
    assert choose({0: [1.0], 1: [1.0]}, {0: [1.0], 1: [1.0]}, 1) == 1
    assert best({0: [0.5], 1: [1.0]}, 1) == 0
    assert choose({0: [0.5], 1: [1.0]}, {0: [1.0], 1: [1.0]}, 1) == 1  # lucky once
    assert choose({0: [0.5], 1: [1.0]}, {0: [0.5] * 3 + [2.0] * 2, 1: [1.0] * 5}, 1) == 1  # in three rounds of five
    assert choose({0: [0.5], 1: [1.0]}, {0: [0.98] * 5, 1: [1.0] * 5}, 1) == 1  # in all rounds, but by little
    assert choose({0: [0.5], 1: [1.0]}, {0: [0.5] * 4 + [2.0], 1: [1.0] * 5}, 1) == 0


@given(races(noise=0.3))
def test_halving_keeps_the_default_and_the_best(race) -> None:
    _, default, (first, _) = race
    left = better_half(first, default)
    assert default in left and list(left) == sorted(set(left))
    assert best(first, default) in left
    assert len(left) <= (len(first) + 1) // 2 + 1


LINES = [Line(0, "a", 0, True), Line(0, "b", 1024, False, 2), Line(0, "c", 4096, False, 4)]
DEFAULT: Lines = (Line(1000, "a", 0, True), Line(ANY, "b", 1024, False, 2))


@given(st.dictionaries(st.integers(0, 5000), st.sampled_from(LINES), max_size=8), st.integers(0, 6000))
def test_lines_serve_what_was_chosen_and_the_default_where_neighbours_differ(
    chosen: Dict[int, Line], size: int
) -> None:
    lines = lines_of(chosen, DEFAULT)
    assert lines[-1].max_bytes == ANY
    assert [line.max_bytes for line in lines] == sorted({line.max_bytes for line in lines})
    below = max((near for near in chosen if near <= size), default=None)
    above = min((near for near in chosen if near >= size), default=None)
    between = below is not None and above is not None and chosen[below] == chosen[above]
    wanted = chosen[below] if between and below is not None else of_size(DEFAULT, size)
    got = of_size(lines, size)
    assert (got.algorithm, got.piece_bytes, got.in_flight) == (wanted.algorithm, wanted.piece_bytes, wanted.in_flight)


def test_no_more_pieces_at_once_than_the_core_has_slots_for() -> None:
    assert MOST_IN_FLIGHT == _core.LARGE_SLOTS


def test_defaults_at_all_sizes_are_the_default() -> None:
    for topology in (Topology.flat(4), Topology.flat(2, shared=True), Topology.parse("2x4", shared=1)):
        lines = select(Collective.ALLREDUCE, topology)
        chosen = {}
        for nbytes in (8, 4096, 1 << 16, 1 << 20, 1 << 26):
            chosen[nbytes] = default_of(Collective.ALLREDUCE, topology, nbytes).line(Collective.ALLREDUCE, topology)
        assert lines_of(chosen, lines) == lines


def test_what_is_tried() -> None:
    for topology in (Topology.flat(4), Topology.flat(4, shared=True), Topology.parse("2x4", shared=1)):
        for collective in (Collective.ALLREDUCE, Collective.BROADCAST):
            among = candidates([collective], topology)
            assert len(set(among)) == len(among) <= 24
            for nbytes in (1, 4096, 4097, MOST_SMALL + 1, 1 << 22):
                numbers, default = worth_trying(collective, topology, nbytes, among)
                assert default in numbers
                assert among[default] == default_of(collective, topology, nbytes)
                for candidate in (among[number] for number in numbers if number != default):
                    assert candidate.suits(collective, topology)
                    assert nbytes <= MOST_SMALL or not candidate.small  # nothing long where small ones must not wait
                ways = [
                    (candidate.algorithm, candidate.small, nbytes <= candidate.piece_bytes or candidate)
                    for candidate in map(among.__getitem__, numbers)
                ]
                assert len(set(ways)) == len(ways)  # of those that would do the same, one
