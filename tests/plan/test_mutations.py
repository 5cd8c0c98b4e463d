"""Breaks good plans and expects ``verify`` to say what broke: a proof that accepts everything proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.cases import plans_of

from ddl.errors import InternalError
from ddl.plan import Buffer, Collective, Kind, Step
from ddl.plan.verify import PlanError, verify
from ddl.topology import Topology

SHARED = Topology.flat(4, shared=True)
LATE = SHARED.with_late((2,))
FLAT = Topology.flat(4)


def good(collective, algorithm, topology=FLAT, root=0):
    plans = plans_of(collective, algorithm, topology, root)
    verify(plans)
    return plans


def edit(plans, rank, change, channel=0):
    """Return the plans with ``change`` applied to the list of steps of one rank."""
    steps = list(plans[rank].channels[channel])
    change(steps)
    channels = list(plans[rank].channels)
    channels[channel] = tuple(steps)
    return [replace(p, channels=tuple(channels)) if p.rank == rank else p for p in plans]


def find(steps, kind, nth=0):
    return [i for i, step in enumerate(steps) if step.kind is kind][nth]


def drop(kind, nth=0):
    return lambda steps: steps.pop(find(steps, kind, nth))


def alter(kind_of_step, nth=0, /, **fields):
    def change(steps):
        index = find(steps, kind_of_step, nth)
        steps[index] = replace(steps[index], **fields)

    return change


def repeat(kind, nth=0):
    return lambda steps: steps.insert(find(steps, kind, nth), steps[find(steps, kind, nth)])


def swap(i, j):
    def change(steps):
        steps[i], steps[j] = steps[j], steps[i]

    return change


#: Whether the message has arrived in the order that ``verify`` replays makes no difference to the verdict.
OVERWRITTEN = "writes chunk 0 of OUTPUT of rank . (while it may still be sent|in no order)"
AR, BC, RD, AG = Collective.ALLREDUCE, Collective.BROADCAST, Collective.REDUCE, Collective.ALLGATHER

# collective, algorithm, topology, rank to break, how, what verify must say
BROKEN = {
    "a lost send shows in the next": (AR, "ring", FLAT, 1, drop(Kind.SEND, 2), r"chunks \[2, 3\).* sends \[1, 2\)"),
    "the receiver of no message waits": (BC, "tree", FLAT, 0, drop(Kind.SEND), "but rank 0 has ended"),
    "a lost receive leaves a message": (AG, "ring", FLAT, 1, drop(Kind.RECV, 2), r"rank 0 .*never receives"),
    "a wrong peer gets the message": (BC, "tree", FLAT, 2, alter(Kind.SEND, peers=(1,)), "rank 3 .* waits for"),
    "messages keep their order": (BC, "ring", FLAT, 0, swap(0, 1), r"expects chunks \[0, 1\), but .* sends \[1, 2\)"),
    "a send twice is received once": (AG, "ring", FLAT, 3, repeat(Kind.SEND, 2), "never receives this message"),
    "no reduction": (AR, "direct", SHARED, 2, drop(Kind.REDUCE_FROM), "OUTPUT of rank 2, which is undefined"),
    "a peer left out": (AR, "direct", SHARED, 1, alter(Kind.REDUCE_FROM, peers=(0, 2)), r"ranks \[0, 1, 2\];"),
    "a late rank left out": (AR, "direct", LATE, 0, drop(Kind.REDUCE_FROM, 1), r"ranks \[0, 1, 3\]"),
    "its part alone": (AR, "direct", LATE, 0, alter(Kind.REDUCE_FROM, 1, onto=False), r"of ranks \[0, 2\]"),
    "nobody waits for it": (AR, "direct", LATE, 1, drop(Kind.AWAIT, 1), "without knowing of that rank's first NOTIFY"),
    "onto in a copy": (AR, "direct", LATE, 1, alter(Kind.COPY_TO, onto=True), "only REDUCE_FROM does"),
    "no push": (AR, "direct", SHARED, 1, drop(Kind.COPY_TO), r"has the contributions of ranks \[\] instead"),
    "the last wait": (AR, "direct", SHARED, 3, drop(Kind.AWAIT, 1), "plan may end before rank . channel 0 step"),
    "the first wait": (AR, "direct", SHARED, 3, drop(Kind.AWAIT), "without knowing of that rank's first NOTIFY"),
    "the last notice": (AR, "direct", SHARED, 0, drop(Kind.NOTIFY, 1), r"waits for phase 2 of rank 0"),
    "a phase again": (AR, "direct", SHARED, 0, alter(Kind.NOTIFY, 1, phase=1), "phases grow by one"),
    "notice before the work": (AR, "direct", SHARED, 0, swap(3, 4), "plan may end before rank 0 channel 0 step 4"),
    "publish before the copy": (AR, "eager", SHARED, 1, swap(0, 1), "SCRATCH of rank 1 without .* order with rank 1"),
    "final forgotten": (AR, "direct", SHARED, 0, alter(Kind.REDUCE_FROM, final=False), "comes from no final step"),
    "final too early": (
        AR,
        "ring",
        FLAT,
        0,
        alter(Kind.RECV_REDUCE, final=True),
        r"final for chunk 2.*only has .*\[0, 3\]",
    ),
    "final without a reduction": (AR, "ring", FLAT, 0, alter(Kind.RECV, final=True), "final but does not reduce"),
    "final where nothing reduces": (BC, "ring", FLAT, 1, alter(Kind.RECV, final=True), "that does not reduce"),
    "a reduction where none may be": (BC, "ring", FLAT, 1, alter(Kind.RECV, kind=Kind.RECV_REDUCE), "reduces in a"),
    "INPUT is only read": (AR, "ring", FLAT, 1, alter(Kind.RECV, dst=Buffer.INPUT), "writes to INPUT"),
    "not in the buffer": (RD, "ring", FLAT, 2, alter(Kind.SEND, src=Buffer.OUTPUT), "not in OUTPUT of rank 2"),
    "undefined scratch": (RD, "tree", FLAT, 2, swap(0, 1), "chunk 0 of SCRATCH of rank 2, which is undefined"),
    "a peer that is me": (BC, "tree", FLAT, 0, alter(Kind.SEND, peers=(0,)), "not distinct other ranks below 4"),
    "a peer that is not": (BC, "tree", FLAT, 0, alter(Kind.SEND, peers=(4,)), "not distinct other ranks below 4"),
    "two peers": (BC, "tree", FLAT, 0, alter(Kind.SEND, peers=(1, 2)), "has 2 peers"),
    "no peers": (AR, "direct", SHARED, 0, alter(Kind.AWAIT, peers=()), "has no peers"),
    "nothing to do": (AR, "direct", SHARED, 0, alter(Kind.COPY_TO, count=0), "moves 0 chunks"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_plan_is_refused(name):
    collective, algorithm, topology, rank, change, words = BROKEN[name]
    plans = edit(good(collective, algorithm, topology), rank, change)
    with pytest.raises(PlanError, match=words) as caught:
        verify(plans)
    assert isinstance(caught.value, InternalError)
    text = str(caught.value)
    assert text.startswith("[rank ")
    assert f"{collective.name.lower()} by {algorithm!r}, 4 ranks" in text
    assert "please report it" in text


def test_a_contribution_may_not_count_twice():
    """Rank 1 sends twice to its parent in the tree, which adds both."""
    plans = edit(good(AR, "tree"), 1, repeat(Kind.SEND))
    again = replace(plans[0].channels[0][0], src=Buffer.OUTPUT)
    plans = edit(plans, 0, lambda steps: steps.insert(1, again))
    with pytest.raises(PlanError, match=r"adds the contributions of ranks \[1\] to chunk 0 twice"):
        verify(plans)


def test_a_reduction_twice_counts_twice_in_place_only():
    """Reading every INPUT again is harmless, unless one of them has become the OUTPUT."""
    plans = edit(good(AR, "direct", SHARED), 2, repeat(Kind.REDUCE_FROM))
    verify(plans)
    with pytest.raises(PlanError, match=r"adds the contributions of ranks \[0, 1\] to chunk 2 twice"):
        verify(plans, in_place=True)


def test_a_send_may_not_be_overwritten():
    """Recursive doubling may write again what the first round sent, since it waits until that has left."""
    plans = good(AR, "recursive_doubling")
    bare = [replace(p, channels=(tuple(replace(s, after_sends=False) for s in p.channels[0]),)) for p in plans]
    verify(bare)  # not in place, the first round's INPUT is never written
    verify(plans, in_place=True)
    with pytest.raises(PlanError, match=OVERWRITTEN):
        verify(bare, in_place=True)


def test_a_rank_may_not_wait_until_its_last_message_has_left():
    """Over a transport without memory all would wait for one another to receive it."""
    plans = good(AR, "recursive_doubling")
    for rank in range(4):
        plans = edit(plans, rank, alter(Kind.RECV_REDUCE, 1, after_sends=True))
    with pytest.raises(PlanError, match="deadlock: rank 0 .* waits for its message to be received by rank 2, rank 2"):
        verify(plans)


def test_what_has_left_need_not_have_arrived():
    """Rank 0 writes where rank 1 receives the same from it, after a wait for the transport only."""
    send = Step(Kind.SEND, (1,), 0, 1, src=Buffer.INPUT)
    push = Step(Kind.COPY_TO, (1,), 0, 1, src=Buffer.INPUT, dst=Buffer.OUTPUT, after_sends=True)
    meet = [Step(Kind.NOTIFY, phase=1), Step(Kind.RECV, (0,), 0, 1, dst=Buffer.OUTPUT)]
    steps = [
        [Step(Kind.AWAIT, (1,), phase=1), send, push, Step(Kind.NOTIFY, phase=1)],
        [*meet, Step(Kind.AWAIT, (0,), phase=1)],
    ]
    plans = good(BC, "eager", Topology.flat(2, shared=True))
    copy = Step(Kind.COPY, first=0, count=1, src=Buffer.INPUT, dst=Buffer.OUTPUT)
    plans = [replace(plan, channels=(tuple(s),), scratch=()) for plan, s in zip(plans, [[copy, *steps[0]], steps[1]])]
    order = "writes chunk 0 of OUTPUT of rank 1 without a defined order with rank 1 channel 0 step 1"
    with pytest.raises(PlanError, match=order):
        verify(plans)


def test_a_circle_of_waits():
    """Everybody receives before it sends: the message names all who wait."""
    plans = good(AG, "ring")
    for rank in range(4):
        plans = edit(plans, rank, swap(0, 1))
    with pytest.raises(PlanError, match="deadlock: rank 0 .* message from rank 3, rank 3 .* closes a cycle") as caught:
        verify(plans)
    assert str(caught.value).count("waits for a message from") == 4


def test_a_late_receive_is_a_race_too():
    """The message has arrived in this replay, but the writer cannot know that."""
    into_output = Step(Kind.RECV, (0,), 0, 1, dst=Buffer.OUTPUT)
    root = [Step(Kind.SEND, (1,), 0, 1, src=Buffer.OUTPUT), Step(Kind.RECV, (2,), 0, 1, dst=Buffer.OUTPUT)]
    plans = good(BC, "tree", Topology.flat(3), root=2)
    steps = [root, [into_output], [Step(Kind.SEND, (0,), 0, 1, src=Buffer.INPUT)] * 2]
    steps[0].insert(0, steps[0][1])
    steps[2] = [*steps[2], plans[2].channels[0][-1]]
    broken = [replace(plan, channels=(tuple(s),)) for plan, s in zip(plans, steps)]
    with pytest.raises(PlanError, match=OVERWRITTEN):
        verify(broken)


def test_in_place_is_another_proof():
    """Sending INPUT while the result is written to OUTPUT is right only where they are different memory."""
    start = [Step(Kind.SEND, (1,), 0, 1, src=Buffer.INPUT)]
    end = [Step(Kind.RECV_REDUCE, (1,), 0, 1, src=Buffer.INPUT, dst=Buffer.OUTPUT, final=True)]
    plans = good(AR, "recursive_doubling", Topology.flat(2))
    mirrored = [tuple(start + end), tuple(replace(s, peers=(0,)) for s in start + end)]
    careless = [replace(plan, channels=(steps,), scratch=()) for plan, steps in zip(plans, mirrored)]
    verify(careless)
    with pytest.raises(PlanError, match="writes chunk 0 of OUTPUT"):
        verify(careless, in_place=True)


@pytest.mark.parametrize("algorithm", ["eager", "direct", "recursive_doubling", "tree"])
@pytest.mark.parametrize("rank", range(4))
def test_a_barrier_waits_for_everybody(algorithm, rank):
    """Take one rank's last wait away, and what it waits for: then somebody may leave before all have entered."""
    plans = good(Collective.BARRIER, algorithm, SHARED if algorithm in ("eager", "direct") else FLAT)
    empty = [replace(plan, channels=((),)) for plan in plans]
    with pytest.raises(PlanError, match=r"may leave the barrier before ranks \[1, 2, 3\] have entered"):
        verify(empty)
    steps = plans[rank].channels[0]
    waits = [i for i, step in enumerate(steps) if step.kind in (Kind.AWAIT, Kind.RECV)]
    step = steps[waits[-1]]
    if step.kind is Kind.AWAIT:
        broken = edit(plans, rank, lambda s: s.__setitem__(waits[-1], replace(step, peers=step.peers[1:])))
    else:
        broken = edit(plans, rank, lambda s: s.pop(waits[-1]))
        sender = broken[step.peers[0]].channels[0]
        sends = [i for i, s in enumerate(sender) if s.kind is Kind.SEND and s.peers == (rank,)]
        broken = edit(broken, step.peers[0], lambda s: s.pop(sends[-1]))
    with pytest.raises(PlanError, match="may leave the barrier before"):
        verify(broken)


def two_rings():
    """Two rings in two channels, the second running the other way on chunks of its own: a good plan."""
    size = 3
    ring = plans_of(AR, "ring", Topology.flat(size))
    other = plans_of(AR, "ring", Topology.flat(size).with_order((2, 1, 0)))
    plans = []
    for a, b in zip(ring, other):
        shifted = tuple(replace(step, first=step.first + size) for step in b.channels[0])
        chunks = tuple(range(2 * size))
        plans.append(
            replace(a, chunks=2 * size, input=chunks, output=chunks, channels=(a.channels[0], shifted), scratch=())
        )
    return plans


def test_two_channels_are_two_lanes():
    for in_place in (False, True):
        proof = verify(two_rings(), in_place=in_place)
        assert proof.messages == (8, 8, 8)
        assert proof.bytes_sent(1, 600) == 800
        assert proof.rounds == (4, 4, 4)


def test_two_channels_may_not_touch_the_same_chunk():
    broken = edit(two_rings(), 1, alter(Kind.RECV, first=2), channel=1)
    with pytest.raises(PlanError, match=r"\[rank 1 channel 1\].*chunk 2 is also touched by channel 0"):
        verify(broken)


def test_a_channel_meets_the_same_channel_only():
    plans = [replace(plan, channels=((), plan.channels[0])) if plan.rank == 2 else plan for plan in good(BC, "tree")]
    with pytest.raises(PlanError, match="rank 2, which has no channel|has no channel 1|deadlock|never receives"):
        verify(plans)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 0}, "given as the plan of rank 2 of 4, but it is for rank 0 of 4"),
        ({"size": 5}, "but it is for rank 2 of 5"),
        ({"root": 1}, "its root is 1, but on rank 0 it is 0"),
        ({"algorithm": "ring"}, "its algorithm is 'ring', but on rank 0 it is 'tree'"),
        ({"output": (1,)}, "not distinct chunks below 1"),
        ({"input": (0,)}, r"INPUT holds chunks \(0,\), but should hold \(\)"),
        ({"output": ()}, r"OUTPUT holds chunks \(\), but should hold \(0,\)"),
        ({"in_place": True}, "it is in place, but INPUT"),
    ],
)
def test_the_ranks_must_plan_the_same(fields, words):
    plans = good(BC, "tree")
    plans[2] = replace(plans[2], **fields)
    with pytest.raises(PlanError, match=words):
        verify(plans, in_place=True)


def test_blocks_belong_to_their_ranks():
    plans = good(Collective.REDUCESCATTER, "ring")
    for rank, other in ((0, 1), (1, 0)):
        plans[rank] = replace(plans[rank], output=(other,))
    with pytest.raises(PlanError, match=r"OUTPUT holds chunks \(1,\), but should hold \(0,\)"):
        verify(plans)
    with pytest.raises(PlanError, match="there are no plans"):
        verify([])
    send = [replace(plan, collective=Collective.SEND) for plan in good(BC, "tree")]
    with pytest.raises(PlanError, match="this collective has no plans"):
        verify(send)
