"""What happens in which round, counts without an order of events, and what of a large plan is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan.cases import PAIRS, plans_of, roots, suits

from ddl.errors import ConfigError, InvalidArgument
from ddl.plan import Collective, Kind, Step
from ddl.plan.counts import Counts, count
from ddl.plan.excerpt import hidden_rounds, shown_ranks
from ddl.plan.schedule import Meet, Message, Schedule, schedule
from ddl.plan.step_text import ranks_text, run_text, step_text
from ddl.plan.verify import verify
from ddl.topology import Topology

ALLREDUCE, BROADCAST, GATHER = Collective.ALLREDUCE, Collective.BROADCAST, Collective.GATHER


def events_of(collective: Collective, algorithm: str, topology: Topology, root: int = 0) -> Schedule:
    plans = plans_of(collective, algorithm, topology, root)
    return schedule(plans, verify(plans))


def test_a_ring_of_three() -> None:
    """Two rounds of sums, which end at the ranks of their chunks, and two of copies."""
    events = events_of(ALLREDUCE, "ring", Topology.flat(3))
    messages = {(m.arrives, m.source, m.target, m.runs[0], m.reduces) for m in events.messages}
    assert messages == {
        *((1, r, (r + 1) % 3, ((r - 1) % 3, 1), True) for r in range(3)),
        *((2, r, (r + 1) % 3, ((r - 2) % 3, 1), True) for r in range(3)),
        *((3, r, (r + 1) % 3, (r, 1), False) for r in range(3)),
        *((4, r, (r + 1) % 3, ((r - 1) % 3, 1), False) for r in range(3)),
    }
    assert all(m.leaves == m.arrives - 1 for m in events.messages)
    assert (events.rounds, events.works, events.meets) == (4, (), ())


def test_direct_works_between_its_two_meets() -> None:
    events = events_of(ALLREDUCE, "direct", Topology.flat(3, shared=True))
    assert events.messages == ()
    assert events.meets == (Meet(1, (0, 1, 2), (0, 1, 2)), Meet(2, (0, 1, 2), (0, 1, 2)))
    works = [(w.rank, w.depth, w.layer, w.step.kind, w.step.first) for w in events.works]
    assert works == [
        (rank, 1, layer, kind, rank) for rank in range(3) for layer, kind in enumerate((Kind.REDUCE_FROM, Kind.COPY_TO))
    ]


def test_hosts_meet_apart_and_a_root_may_wait_alone() -> None:
    events = events_of(ALLREDUCE, "multiring", Topology.parse("2x2", shared=1))
    assert sorted({meet.ranks for meet in events.meets}) == [(0, 1), (2, 3)]
    events = events_of(GATHER, "direct", Topology.flat(3, shared=True), 1)
    assert events.meets == (Meet(1, (0, 1, 2), (0, 2)), Meet(2, (0, 1, 2), (1,)))


def test_messages_of_one_round_are_one_and_empty_ones_stay_apart() -> None:
    events = events_of(BROADCAST, "ring", Topology.flat(3))
    assert events.messages == (
        Message(0, 1, 0, 1, False, ((0, 4),)),
        Message(1, 2, 1, 2, False, ((0, 4),)),
    )
    plans = plans_of(BROADCAST, "ring", Topology.flat(2))
    empty = [Step(Kind.SEND, (1,)), Step(Kind.RECV, (0,))]
    plans = [replace(plan, channels=((step, *plan.channels[0]),)) for plan, step in zip(plans, empty)]
    events = schedule(plans, verify(plans))
    assert sorted(len(m.runs) for m in events.messages) == [0, 1]


@pytest.mark.few(365)
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("text", ["1", "2", "5", "2x3", "3x2x2"])
@pytest.mark.parametrize("shared", [0, 1])
def test_every_chunk_of_the_plans_is_somewhere(collective: Collective, algorithm: str, text: str, shared: int) -> None:
    """Nothing is lost on the way into the drawing, and what two ranks count of each other agrees."""
    topology = Topology.parse(text, shared=shared)
    if not suits(algorithm, topology):
        return
    for root in roots(collective, topology.size):
        plans = plans_of(collective, algorithm, topology, root)
        proof = verify(plans)
        events = schedule(plans, proof)
        counts = [count(plan) for plan in plans]
        drawn = sum(length for message in events.messages for _, length in message.runs)
        assert drawn == sum(c.chunks_sent for c in counts) == sum(c.chunks_received for c in counts)
        direct = sum(len(work.step.peers) * work.step.count for work in events.works)
        assert direct == sum(c.chunks_direct for c in counts)
        assert max(depth for of_rank in proof.depths for lane in of_rank for depth in (*lane, 0)) == events.rounds
        for message in events.messages:
            assert 0 <= message.leaves < message.arrives <= events.rounds
        for plan, total in zip(plans, counts):
            parts = [count(plan, {peer}) for peer in range(topology.size)]
            assert sum(part.chunks_sent for part in parts) == total.chunks_sent
            assert sum(part.messages + part.signals for part in parts) == total.messages + total.signals


def test_counts_by_hand() -> None:
    """Rank 0 of 2x2: reads and writes two of four chunks of rank 1, and exchanges two single chunks with rank 2."""
    plan = plans_of(ALLREDUCE, "multiring", Topology.parse("2x2", shared=1))[0]
    assert count(plan) == Counts(2, 0, 2, 2, 2, 2)
    assert count(plan, {1}) == Counts(0, 0, 0, 0, 2, 2)
    assert count(plan, {2}) == Counts(2, 0, 2, 2, 0, 0)
    assert count(plan, {3}) == Counts()


def test_small_plans_are_shown_whole() -> None:
    for text in ("1", "8", "4x8", "1x32", "2x2x2x2"):
        topology = Topology.parse(text, shared=1)
        assert shown_ranks(topology, 0) == topology.order
    assert not hidden_rounds(events_of(ALLREDUCE, "ring", Topology.flat(7)), range(7))


def test_of_many_ranks_those_in_line_with_one_are_shown() -> None:
    assert shown_ranks(Topology.parse("4x8x2", shared=1), 0) == (0, 1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32)
    assert shown_ranks(Topology.parse("4x8x2", shared=1), 38) == (6, 34, 36, 37, 38, 39, 42, 46, 50, 54, 58, 62)
    assert shown_ranks(Topology.flat(64), 0) == (0, 1, 2, 3, 4, 5, 6, 63)
    assert shown_ranks(Topology.flat(64), 62) == (0, 1, 2, 3, 4, 61, 62, 63)
    assert shown_ranks(Topology.flat(16, shared=True), 3) == (2, 3, 4, 5, 6, 7, 8, 9)
    turned = Topology.flat(64).with_order(tuple(reversed(range(64))))
    assert shown_ranks(turned, 63) == (63, 62, 61, 60, 59, 58, 57, 0)


def test_rounds_that_look_alike_lose_their_middle() -> None:
    events = events_of(ALLREDUCE, "ring", Topology.flat(9))
    assert sorted(hidden_rounds(events, range(9))) == [3, 4, 5, 6, 7, 11, 12, 13, 14, 15]
    events = events_of(ALLREDUCE, "multiring", Topology.parse("4x8x2", shared=1))
    assert sorted(hidden_rounds(events, range(64))) == [4, 5, 6, 7, 13, 14, 15]
    # Nothing is alike in an all-to-all: the middle of the whole is left out.
    events = events_of(Collective.ALLTOALL, "ring", Topology.flat(30))
    assert sorted(hidden_rounds(events, range(30))) == [13, 14, 15, 16, 17]


def test_words() -> None:
    topology = Topology.parse("2x2", shared=1)
    told = [step_text(step) for step in plans_of(ALLREDUCE, "multiring", topology)[1].channels[0]]
    assert told == [
        "announce phase 1",
        "wait until rank 0 announced phase 1",
        "reduce chunks 2–3 of my input and that of rank 0 into my output",
        "send chunk 3 of my output to rank 3",
        "receive chunk 2 from rank 3 and reduce with my output into my output (final)",
        "send chunk 2 of my output to rank 3",
        "receive chunk 3 from rank 3 into my output",
        "copy chunks 2–3 of my output into output of rank 0",
        "announce phase 2",
        "wait until rank 0 announced phase 2",
    ]
    assert (run_text(4, 1), run_text(4, 3), ranks_text((1, 2, 3))) == ("4", "4–6", "ranks 1–3")
    for collective, algorithm in PAIRS:
        for plan in plans_of(collective, algorithm, Topology.flat(4, shared=True)):
            assert all(step_text(step) for step in plan.channels[0])


def test_the_link_between_two_ranks_is_the_outermost_that_differs() -> None:
    topology = Topology.parse("2x2x2")
    assert [topology.crossed(0, other) for other in range(1, 8)] == [0, 1, 1, 2, 2, 2, 2]
    with pytest.raises(InvalidArgument, match="rank 3 to itself"):
        topology.crossed(3, 3)


def test_too_many_ranks_are_a_typing_error() -> None:
    with pytest.raises(ConfigError, match="'99999x99999'.*multiply to 9999800001; more than 1048576"):
        Topology.parse("99999x99999")
