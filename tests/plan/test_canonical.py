"""The canonical tree and the plans that add along it: its order, who shares what, and bits that no layout changes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan.cases import mode, ordered_factorisations, plans_of, roots, suits
from plan.interpreter import run

from ddl.plan import Collective, algorithms
from ddl.plan.canonical_tree import CANONICAL, depth, even_shares, merges, order
from ddl.plan.layout import REDUCING
from ddl.plan.verify import PlanError, verify
from ddl.topology import Topology

AR = Collective.ALLREDUCE


@pytest.mark.parametrize(
    ("size", "tree"),
    [
        (1, 0),
        (2, (0, 1)),
        (3, ((0, 1), 2)),
        (4, ((0, 1), (2, 3))),
        (5, (((0, 1), (2, 3)), 4)),
        (6, (((0, 1), (2, 3)), (4, 5))),
        (7, (((0, 1), (2, 3)), ((4, 5), 6))),
    ],
)
def test_the_tree(size, tree):
    assert order(0, size) == tree


@pytest.mark.parametrize("size", range(2, 34))
def test_shares_are_nested_and_nearly_even(size):
    for rank in range(size):
        way = merges(even_shares(size), rank)
        assert len(way) == depth(rank, 0, size)
        for merge in way:
            ranks = merge.end - merge.first
            assert sorted(merge.merged) == list(range(merge.first, merge.end))
            for part in (merge.own, merge.theirs, merge.merged):
                chunks = [chunk for run in part.values() for chunk in run]
                assert chunks == list(range(size))  # each once, in order
            for part in (merge.own, merge.theirs):
                assert all(set(merge.merged[owner]) <= set(run) for owner, run in part.items())
            assert max(len(run) for run in merge.merged.values()) <= 2 * -(-size // ranks)
            if size & (size - 1) == 0:
                assert {len(run) for run in merge.merged.values()} == {size // ranks}
                assert len(merge.gives(rank)) == len(merge.takes(rank)) == 1


def layouts(size):
    """Every factorisation with its first dimension shared, with the ranks in order, dealt in turn and shuffled."""
    shuffled = list(range(size))
    random.Random(size).shuffle(shuffled)
    for sizes in ordered_factorisations(size):
        for shared in (0, 1):
            topology = Topology.parse(mode(sizes), shared=shared)
            inner = topology.dimensions[0].size
            dealt = [rank for host in range(size // inner) for rank in range(host, size, size // inner)]
            for ranks in (range(size), dealt, shuffled):
                yield topology.with_order(ranks)


@pytest.mark.few(10)
@pytest.mark.parametrize("size", range(2, 14))
@pytest.mark.parametrize("algorithm", sorted(CANONICAL))
def test_every_layout_is_proved_to_add_along_the_tree(algorithm, size):
    for topology in layouts(size):
        for collective in sorted(c for c in REDUCING if algorithm in algorithms(c)):
            for root in roots(collective, size):
                plans = plans_of(collective, algorithm, topology, root)
                assert verify(plans).canonical
                assert verify(plans, in_place=True).canonical


@pytest.mark.parametrize("collective", sorted(REDUCING), ids=lambda collective: collective.name)
def test_two_ranks_add_along_the_tree_by_any_algorithm(collective):
    """Why ``select`` may leave two ranks their fastest plans."""
    for algorithm in algorithms(collective):
        for topology in (Topology.flat(2), Topology.flat(2).with_order((1, 0)), Topology.flat(2, shared=True)):
            if suits(algorithm, topology):
                assert verify(plans_of(collective, algorithm, topology)).canonical


@pytest.mark.parametrize(
    ("algorithm", "topology", "order"),
    [
        ("direct", Topology.flat(4, shared=True), r"\(0, 1, 2, 3\)"),
        ("ring", Topology.flat(4), r"\(0, \(\(1, 2\), 3\)\)"),
        ("recursive_doubling", Topology.flat(4).with_order((0, 2, 1, 3)), r"\(\(0, 2\), \(1, 3\)\)"),
    ],
)
def test_another_order_is_refused(algorithm, topology, order):
    plans = [replace(plan, algorithm="canonical") for plan in plans_of(AR, algorithm, topology)]
    assert not verify(plans_of(AR, algorithm, topology)).canonical
    with pytest.raises(PlanError, match=rf"rank 0.*summed in the order {order} instead of \(\(0, 1\), \(2, 3\)\)"):
        verify(plans)


@pytest.mark.parametrize(("slots", "hosts"), [(2, 2), (4, 2), (2, 4), (4, 4), (8, 2), (4, 3)])
def test_hosts_send_only_the_sum_of_their_ranks(slots, hosts):
    """With a power of two of ranks on a host, wires carry what a multi-ring sends; of three hosts, up to half more."""
    topology = Topology.parse(f"{slots}x{hosts}", shared=1)
    proof, best = (verify(plans_of(AR, name, topology)) for name in ("canonical", "multiring"))
    if hosts & (hosts - 1) == 0:
        assert set(proof.chunks_sent) == set(best.chunks_sent)
    else:
        sent = [sum(proof.chunks_sent[host * slots : (host + 1) * slots]) for host in range(hosts)]
        assert max(sent) < 1.5 * slots * best.chunks_sent[0]


@st.composite
def placed(draw, size):
    """Any layout of ``size`` ranks."""
    sizes = draw(st.sampled_from(list(ordered_factorisations(size))))
    topology = Topology.parse(mode(sizes), shared=draw(st.integers(0, len(sizes))))
    return topology.with_order(draw(st.permutations(range(size))))


def tree_sum(values, first, end):
    if end - first == 1:
        return values[first]
    cut = first + (1 << ((end - first - 1).bit_length() - 1))
    return tree_sum(values, first, cut) + tree_sum(values, cut, end)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("algorithm", sorted(CANONICAL))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), size=st.integers(2, 8), seed=st.integers(0, 2**32))
def test_real_numbers_have_the_bits_of_the_tree(algorithm, dtype, data, size, seed):
    """Every addition rounds to the type, so any other order would show in some of the chunks."""
    topology = data.draw(placed(size))
    plans = plans_of(AR, algorithm, topology)
    draw = np.random.default_rng(seed)
    inputs = draw.standard_normal((size, plans[0].chunks)).astype(dtype) * dtype(2) ** draw.integers(-5, 5, (size, 1))
    inputs = inputs.astype(dtype)
    outputs = run(plans, [dict(enumerate(row)) for row in inputs], lambda a, b: dtype(a + b), seed=seed)
    expected = tree_sum(inputs, 0, size).astype(dtype)
    for output in outputs:
        assert np.array(output, dtype).tobytes() == expected.tobytes()


def test_other_algorithms_have_other_bits():
    """What the test above relies on: that another order shows."""
    rows = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    bits = {}
    for algorithm in ("canonical", "ring", "multiring"):
        plans = plans_of(AR, algorithm, Topology.flat(4))
        outputs = run(plans, [dict(enumerate(row)) for row in rows], lambda a, b: np.float32(a + b), seed=1)
        bits[algorithm] = np.array(outputs[0]).tobytes()
    assert bits["canonical"] == tree_sum(rows, 0, 4).tobytes()
    assert bits["canonical"] not in (bits["ring"], bits["multiring"])
