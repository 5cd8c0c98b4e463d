"""What ranks take themselves instead of being given it: the other plans are right, too, and few plans have any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.cases import PAIRS, in_place_ways, plans_of, roots

from ddl.plan import Buffer, Collective, Kind
from ddl.plan.pull import pull_of, pulled
from ddl.plan.verify import PlanError, verify
from ddl.topology import Topology


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_the_other_plans_are_right(collective, algorithm, size):
    for root in roots(collective, size):
        plans = plans_of(collective, algorithm, Topology.parse(str(size), shared=1), root)
        for in_place in in_place_ways(collective):
            verify(pulled(plans), in_place=in_place)


@pytest.mark.parametrize(("size", "root"), [(2, 0), (2, 1), (5, 3)])
def test_a_broadcast_is_taken_whole(size, root):
    plans = plans_of(Collective.BROADCAST, "direct", Topology.parse(str(size), shared=1), root)
    for plan in pulled(plans):
        steps = [step for step in plan.channels[0] if step.kind not in (Kind.NOTIFY, Kind.AWAIT)]
        if plan.rank == root:
            assert [step.kind for step in steps] == [Kind.COPY]
        else:
            (step,) = steps
            assert (step.kind, step.peers, step.first, step.count) == (Kind.COPY_FROM, (root,), 0, size)


@pytest.mark.parametrize("name", ["gather", "reduce", "allreduce", "scatter"])
def test_others_are_as_they_were(name):
    plans = plans_of(Collective[name.upper()], "direct", Topology.parse("3", shared=1))
    assert pulled(plans) == plans


def test_only_what_comes_from_an_input_that_the_rank_reads_anyway():
    plans = dict(enumerate(plans_of(Collective.BROADCAST, "direct", Topology.parse("2", shared=1))))
    step, whole = pull_of(1, plans)
    assert (step.first, step.count, whole.first, whole.count) == (1, 1, 0, 2) and pull_of(0, plans) is None

    def changed(rank, kind, **fields):
        channel = tuple(replace(each, **fields) if each.kind is kind else each for each in plans[rank].channels[0])
        return {**plans, rank: replace(plans[rank], channels=(channel,))}

    assert pull_of(1, changed(0, Kind.COPY_TO, src=Buffer.OUTPUT)) is None  # it may change meanwhile
    assert pull_of(1, changed(0, Kind.COPY_TO, first=1)) is None  # not the chunk before
    assert pull_of(1, changed(1, Kind.COPY_FROM, src=Buffer.SCRATCH)) is None
    three = dict(enumerate(plans_of(Collective.BROADCAST, "direct", Topology.parse("3", shared=1))))
    alone = replace(three[2], channels=tuple(steps[:-3] for steps in three[2].channels))  # rank 2 reads nothing itself
    assert pull_of(1, three) is not None and pull_of(1, {**three, 2: alone}) is None
    twice = plans[0].channels[0]
    assert pull_of(1, {**plans, 0: replace(plans[0], channels=(twice, twice))}) is None


def test_who_neither_gives_nor_takes_is_found():
    plans = plans_of(Collective.BROADCAST, "direct", Topology.parse("3", shared=1))
    other = pulled(plans)
    with pytest.raises(PlanError, match="contributions of ranks"):
        verify([other[0], *plans[1:]])
