"""Properties beyond the exhaustive range, and a second opinion on ``verify`` from an interpreter with real values.

The interpreter reads a message as late as the contract allows and runs ranks in random order. Whatever ``verify``
accepts must come out right there: for the planners' plans, and for plans that were broken at random.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan.cases import PAIRS, in_place_ways, plans_of, roots, suits
from plan.interpreter import UNDEFINED, Stuck, run

from ddl.plan import Collective, Kind
from ddl.plan.layout import REDUCING, ROOTED
from ddl.plan.verify import PlanError, verify
from ddl.topology import Topology

ids = {"ids": lambda value: getattr(value, "name", value)}


@st.composite
def jobs(draw, largest=40):
    """A topology with any dimensions and any order of ranks, and a root."""
    sizes = [draw(st.integers(1, 6))]
    while len(sizes) < 4 and draw(st.booleans()):
        sizes.append(draw(st.integers(1, 6)))
    while len(sizes) > 1 and Topology.parse("x".join(map(str, sizes))).size > largest:
        sizes.pop()
    topology = Topology.parse("x".join(map(str, sizes)), shared=draw(st.integers(0, len(sizes))))
    topology = topology.with_order(draw(st.permutations(range(topology.size))))
    return topology, draw(st.integers(0, topology.size - 1))


def integers_for(plans):
    """Inputs whose sums tell exactly who is in them, and what each rank must find in OUTPUT."""
    reducing = plans[0].collective in REDUCING
    inputs = [{chunk: 8**plan.rank + (0 if reducing else 1000 * chunk) for chunk in plan.input} for plan in plans]
    expected = {}
    for values in inputs:
        for chunk, value in values.items():
            expected[chunk] = expected.get(chunk, 0) + value
    return inputs, [[expected[chunk] for chunk in plan.output] for plan in plans]


def comes_out_right(plans, seed, in_place):
    inputs, expected = integers_for(plans)
    return run(plans, inputs, lambda a, b: a + b, seed=seed, in_place=in_place) == expected


@pytest.mark.few(21)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, **ids)
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(job=jobs(), seed=st.integers(0, 2**32))
def test_any_topology_order_and_root(collective, algorithm, job, seed):
    topology, root = job
    if not suits(algorithm, topology):
        topology = Topology.flat(topology.size, shared=True).with_order(topology.order)
    plans = plans_of(collective, algorithm, topology, root if collective in ROOTED else 0)
    in_place = seed % 2 == 1 and collective in (Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE)
    verify(plans, in_place=in_place)
    assert comes_out_right(plans, seed, in_place)


@settings(max_examples=50)
@given(late=st.sets(st.integers(0, 6), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_any_late_ranks(late, seed):
    plans = plans_of(Collective.ALLREDUCE, "direct", Topology.flat(7, shared=True).with_late(tuple(late)))
    assert comes_out_right(plans, seed, seed % 2 == 1)


@pytest.mark.parametrize(
    "algorithm", ["direct", "eager", "ring", "recursive_doubling", "leaders", "tree", "multiring", "exchange"]
)
@settings(max_examples=15)
@given(job=jobs(largest=16), seed=st.integers(0, 2**32))
def test_all_ranks_get_the_same_bits(algorithm, job, seed):
    """Real floats: every rank, and every order of events, rounds in the same places."""
    topology, _ = job
    if not suits(algorithm, topology):
        topology = Topology.flat(topology.size, shared=True).with_order(topology.order)
    plans = plans_of(Collective.ALLREDUCE, algorithm, topology)
    draw = random.Random(seed)
    inputs = [{chunk: draw.uniform(-1, 1) * 10 ** draw.randint(-9, 9) for chunk in plan.input} for plan in plans]
    outputs = [run(plans, inputs, lambda a, b: a + b, seed=s) for s in (seed, seed + 1)]
    first = [value.hex() for value in outputs[0][0]]
    assert all([value.hex() for value in output] == first for of_rank in outputs for output in of_rank)


def without(plan, index):
    steps = plan.channels[0]
    return replace(plan, channels=(steps[:index] + steps[index + 1 :],))


@pytest.mark.few(72)
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, **ids)
def test_no_step_of_any_plan_can_be_left_out(collective, algorithm, size):
    """Every single line of every rank's plan is needed, and ``verify`` knows it."""
    for topology in (Topology.flat(size), Topology.flat(size, shared=True)):
        if not suits(algorithm, topology):
            continue
        for root in roots(collective, size):
            plans = plans_of(collective, algorithm, topology, root)
            for rank, plan in enumerate(plans):
                for index in range(len(plan.channels[0])):
                    broken = [*plans[:rank], without(plan, index), *plans[rank + 1 :]]
                    with pytest.raises(PlanError):
                        verify(broken)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, **ids)
def test_no_awaited_peer_can_be_left_out(collective, algorithm, size):
    topology = Topology.flat(size, shared=True)
    for root in roots(collective, size):
        plans = plans_of(collective, algorithm, topology, root)
        for rank, plan in enumerate(plans):
            steps = plan.channels[0]
            for index, step in enumerate(steps):
                if step.kind is not Kind.AWAIT or len(step.peers) == 1:
                    continue
                for peer in step.peers:
                    fewer = replace(step, peers=tuple(p for p in step.peers if p != peer))
                    broken = list(plans)
                    broken[rank] = replace(plan, channels=((*steps[:index], fewer, *steps[index + 1 :]),))
                    with pytest.raises(PlanError):
                        verify(broken)


def mutate(plans, draw):
    """Break one step of one rank: swap, move, repeat, or change a field."""
    plans = list(plans)
    rank = draw.choice([plan.rank for plan in plans if plan.channels[0]])
    steps = list(plans[rank].channels[0])
    i, j = draw.randrange(len(steps)), draw.randrange(len(steps))
    how = draw.randrange(6)
    if how == 0:
        steps[i], steps[j] = steps[j], steps[i]
    elif how == 1:
        steps.insert(j, steps.pop(i))
    elif how == 2:
        steps.insert(j, steps[i])
    elif how == 3:
        steps[i] = replace(steps[i], src=draw.choice(list(type(steps[i].src))))
    elif how == 4:
        steps[i] = replace(steps[i], after_sends=not steps[i].after_sends)
    else:
        steps[i] = replace(steps[i], peers=steps[j].peers)
    plans[rank] = replace(plans[rank], channels=(tuple(steps),))
    return plans


@pytest.mark.few(18)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, **ids)
def test_what_verify_accepts_comes_out_right(collective, algorithm):
    """Among random mutants, the interpreter never finds a wrong result in one that was accepted."""
    draw = random.Random(f"{collective} {algorithm}")
    refused = 0
    for _ in range(60):
        size = draw.choice((2, 3, 4, 5))
        kinds = (Topology.flat(size, shared=True), Topology.parse("2x2", shared=1), Topology.flat(size))
        topology = draw.choice(kinds)
        if not suits(algorithm, topology):
            topology = Topology.flat(topology.size, shared=True)
        root = draw.choice(roots(collective, topology.size))
        in_place = draw.choice(in_place_ways(collective))
        mutant = mutate(plans_of(collective, algorithm, topology, root), draw)
        try:
            verify(mutant, in_place=in_place)
        except PlanError:
            refused += 1
            continue
        for seed in range(12):
            assert comes_out_right(mutant, seed, in_place), (mutant, seed)
    assert refused


def test_the_interpreter_sees_what_a_race_does():
    """It is a judge only if it fails where the proof fails: here recursive doubling does not wait for its sends."""
    plans = plans_of(Collective.ALLREDUCE, "recursive_doubling", Topology.flat(4))
    bare = [replace(p, channels=(tuple(replace(s, after_sends=False) for s in p.channels[0]),)) for p in plans]
    assert not all(comes_out_right(bare, seed, True) for seed in range(200))
    assert all(comes_out_right(plans, seed, True) for seed in range(200))
    lost = [without(plans[0], 0), *plans[1:]]
    with pytest.raises(Stuck):
        comes_out_right(lost, 0, False)
    undefined = [replace(p, channels=((),)) for p in plans]
    assert run(undefined, integers_for(plans)[0], lambda a, b: a + b, seed=0) == [[UNDEFINED]] * 4
