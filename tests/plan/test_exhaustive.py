"""Proves every planner: all ranks of sizes 1..17, all dimensions, shared memory or not, in place or not."""

from __future__ import annotations

import random

import pytest
from plan.cases import PAIRS, in_place_ways, mode, ordered_factorisations, plans_of, roots, suits

from ddl.plan import Collective, Kind, algorithms
from ddl.plan.canonical_tree import CANONICAL
from ddl.plan.verify import verify
from ddl.topology import Topology

SIZES = range(1, 18)


def topologies(size: int):
    """Every ordered factorisation with every number of shared dimensions, and a flat one with the ranks shuffled."""
    for sizes in ordered_factorisations(size):
        for shared in range(len(sizes) + 1):
            yield Topology.parse(mode(sizes), shared=shared)
    order = list(range(size))
    random.Random(size).shuffle(order)
    yield Topology.flat(size).with_order(order)
    yield Topology.flat(size, shared=True).with_order(order)


@pytest.mark.few(35)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_every_plan_is_proved(collective, algorithm, size):
    proofs = 0
    for topology in topologies(size):
        # The multi-ring looks at dimensions, the canonical ones at who shares memory; the others see positions.
        if algorithm not in ("multiring", *CANONICAL) and len(topology.dimensions) > 1:
            continue
        if not suits(algorithm, topology):
            continue
        for root in roots(collective, size):
            plans = plans_of(collective, algorithm, topology, root)
            for in_place in in_place_ways(collective):
                proof = verify(plans, in_place=in_place)
                assert (proof.collective, proof.algorithm, proof.size) == (collective, algorithm, size)
                proofs += 1
    assert proofs > 0


@pytest.mark.parametrize("size", range(2, 8))
def test_plans_for_late_ranks_are_proved(size):
    """Any ranks but all of them may be late. Those then have nothing to add up."""
    topology = Topology.flat(size, shared=True)
    for number in range(1, 2**size - 1):
        late = [rank for rank in range(size) if number >> rank & 1]
        plans = plans_of(Collective.ALLREDUCE, "direct", topology.with_late(late))
        assert verify(plans, in_place=False).size == verify(plans, in_place=True).size == size
        for rank, plan in enumerate(plans):
            kinds = {step.kind for step in plan.channels[0]}
            assert (Kind.REDUCE_FROM in kinds) == (rank not in late) and plan.chunks == size - len(late)


@pytest.mark.parametrize("collective", [c for c in Collective if algorithms(c)])
def test_every_collective_has_a_plan_with_and_without_shared_memory(collective):
    names = algorithms(collective)
    assert {"direct", "eager"} <= set(names)
    assert set(names) & {"ring", "recursive_doubling", "tree", "multiring"}
