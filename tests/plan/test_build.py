"""What ``build`` offers, refuses and remembers; and the plans of a job of one rank."""

from __future__ import annotations

import pytest
from plan.cases import PAIRS

from ddl.errors import InvalidArgument
from ddl.plan import Buffer, Collective, Kind, Step, algorithms, build
from ddl.plan.layout import REDUCING
from ddl.topology import Topology


def test_algorithms_lists_the_table():
    assert algorithms(Collective.ALLREDUCE) == (
        "direct",
        "eager",
        "ring",
        "recursive_doubling",
        "leaders",
        "tree",
        "multiring",
        "canonical",
        "canonical_small",
        "exchange",
    )
    assert algorithms(Collective.ALLTOALL) == ("direct", "eager", "ring")
    assert algorithms(Collective.SEND) == ()


def test_plans_are_cached():
    first = build(Collective.ALLREDUCE, "ring", Topology.flat(3), 1)
    assert build(Collective.ALLREDUCE, "ring", Topology.flat(3), 1) is first


@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_one_rank_copies(collective, algorithm):
    plan = build(collective, algorithm, Topology.flat(1), 0)
    if collective is Collective.BARRIER:
        assert plan.channels == ((),)
        return
    copy = Step(Kind.COPY, count=1, src=Buffer.INPUT, dst=Buffer.OUTPUT, final=collective in REDUCING)
    assert plan.channels == ((copy,),)
    assert plan.input == plan.output == (0,)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((Collective.ALLREDUCE, "magic", Topology.flat(4), 0), "'magic'.*choose one of: direct, eager, ring"),
        ((Collective.ALLTOALL, "tree", Topology.flat(4), 0), "choose one of: direct, eager, ring$"),
        ((Collective.SEND, "ring", Topology.flat(4), 0), "none: it needs no plan"),
        ((Collective.ALLREDUCE, "ring", Topology.flat(4), 4), "rank is 4; give 0..3"),
        ((Collective.BROADCAST, "ring", Topology.flat(4), 0, 4), "root is 4; give 0..3"),
        ((Collective.ALLREDUCE, "ring", Topology.flat(4), 0, 1), "has no root; give 0"),
        ((Collective.ALLREDUCE, "direct", Topology.flat(4), 0), "only 1 of 4 do"),
        ((Collective.ALLREDUCE, "eager", Topology.parse("2x2", shared=1), 0), "only 2 of 4 do"),
    ],
)
def test_build_refuses(arguments, words):
    with pytest.raises(InvalidArgument, match=words):
        build(*arguments)


def test_blocks_of_a_shuffled_topology_still_belong_to_ranks():
    topology = Topology.parse("2x3").with_order((5, 3, 1, 0, 2, 4))
    plans = [build(Collective.REDUCESCATTER, "multiring", topology, rank) for rank in range(6)]
    assert len({plan.input for plan in plans}) == 1
    assert [plan.output for plan in plans] == [(chunk,) for chunk in plans[0].input]


def test_alltoall_chunks_name_source_and_target():
    plan = build(Collective.ALLTOALL, "ring", Topology.flat(3), 1)
    assert plan.input == (3, 4, 5)
    assert plan.output == (1, 4, 7)
    assert plan.peers == (0, 2)
