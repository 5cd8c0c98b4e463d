"""Counts what each algorithm sends, reads and waits for, against the formulas of the design."""

from __future__ import annotations

import pytest
from plan.cases import PAIRS, plans_of, roots, suits

from ddl.plan import Buffer, Collective, Kind, build
from ddl.plan.verify import verify
from ddl.topology import Topology

SIZES = range(2, 18)
NBYTES = 7_000_003  # no size divides it


def log2_up(size):
    return (size - 1).bit_length()


def proof_of(collective, algorithm, size, root=0, shared=False):
    return verify(plans_of(collective, algorithm, Topology.flat(size, shared=shared), root))


@pytest.mark.parametrize("size", SIZES)
def test_ring_moves_the_least_possible(size):
    proof = proof_of(Collective.ALLREDUCE, "ring", size)
    assert set(proof.messages) == set(proof.rounds) == {2 * (size - 1)}
    assert {proof.bytes_sent(rank, NBYTES) * size for rank in range(size)} == {2 * NBYTES * (size - 1)}
    for collective in (Collective.REDUCESCATTER, Collective.ALLGATHER):
        proof = proof_of(collective, "ring", size)
        assert set(proof.messages) == set(proof.rounds) == set(proof.chunks_sent) == {size - 1}
    proof = proof_of(Collective.ALLTOALL, "ring", size)
    assert set(proof.messages) == set(proof.chunks_sent) == {size - 1}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE], ids=lambda c: c.name)
def test_a_chain_passes_everything_once(size, collective):
    for root in roots(collective, size):
        proof = proof_of(collective, "ring", size, root)
        assert sorted(proof.chunks_sent) == [0] + [proof.chunks] * (size - 1)
        # Pipelined: the far end waits for its distance and the number of pieces, not for their product.
        assert max(proof.rounds) <= (size - 1) + 2 * proof.chunks


@pytest.mark.parametrize("size", SIZES)
def test_recursive_doubling_needs_log_rounds(size):
    exact = size & (size - 1) == 0
    rounds = size.bit_length() - 1
    proof = proof_of(Collective.ALLREDUCE, "recursive_doubling", size)
    assert rounds <= max(proof.rounds) <= rounds + (0 if exact else 2)
    assert max(proof.messages) == rounds + (0 if exact else 1)
    assert max(proof.signals) == 0
    for collective in (Collective.ALLGATHER, Collective.BARRIER):
        assert set(proof_of(collective, "recursive_doubling", size).rounds) == {log2_up(size)}
    assert set(proof_of(Collective.ALLGATHER, "recursive_doubling", size).chunks_sent) == {size - 1}
    proof = proof_of(Collective.REDUCESCATTER, "recursive_doubling", size)
    assert rounds <= max(proof.rounds) <= rounds + (0 if exact else 2)
    if exact:
        assert set(proof.chunks_sent) == {size - 1}


@pytest.mark.parametrize("hosts", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("slots", [2, 3])
def test_only_leaders_send_and_only_log_messages(slots, hosts):
    topology = Topology.parse(f"{slots}x{hosts}", shared=1)
    proof = verify(plans_of(Collective.ALLREDUCE, "leaders", topology))
    for rank, messages in enumerate(proof.messages):
        assert (messages > 0) == (rank % slots == 0)
    beyond = 0 if hosts & (hosts - 1) == 0 else 1
    assert max(proof.messages) == hosts.bit_length() - 1 + beyond
    assert max(proof.signals) == 0
    # A meet to begin with, the exchange, and the leader's word that the result is there.
    least = 2 + hosts.bit_length() - 1
    assert least <= max(proof.rounds) <= least + 2 * beyond


@pytest.mark.parametrize("size", SIZES)
def test_tree_needs_log_rounds(size):
    for collective in (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER):
        for root in roots(collective, size):
            proof = proof_of(collective, "tree", size, root)
            assert max(proof.rounds) == size.bit_length() - 1
            assert sum(proof.messages) == size - 1
    for collective in (Collective.ALLREDUCE, Collective.BARRIER):
        assert max(proof_of(collective, "tree", size).rounds) <= 2 * (size.bit_length() - 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), [p for p in PAIRS if p[1] == "direct"], ids=str)
def test_direct_meets_twice_at_most_and_sends_nothing(size, collective, algorithm):
    for root in roots(collective, size):
        plans = plans_of(collective, algorithm, Topology.flat(size, shared=True), root)
        proof = verify(plans)
        assert set(proof.messages) == set(proof.signals) == {0}
        assert max(proof.rounds) <= 2
        assert all([s.kind for s in plan.channels[0]].count(Kind.NOTIFY) <= 2 for plan in plans)


@pytest.mark.parametrize("size", SIZES)
def test_direct_shares_the_work_out(size):
    proof = proof_of(Collective.ALLREDUCE, "direct", size, shared=True)
    assert set(proof.chunks_read) == set(proof.chunks_written) == {size - 1}
    for root in roots(Collective.BROADCAST, size):
        proof = proof_of(Collective.BROADCAST, "direct", size, root, shared=True)
        assert {read + written for read, written in zip(proof.chunks_read, proof.chunks_written)} == {size - 1}
        assert proof.chunks == size
        assert (proof.chunks_read[root], proof.chunks_written[root]) == (0, size - 1)
    for root in roots(Collective.REDUCE, size):
        proof = proof_of(Collective.REDUCE, "direct", size, root, shared=True)
        assert set(proof.chunks_read) == {size - 1}
        assert sum(proof.chunks_written) == size - 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("collective", "algorithm"), [p for p in PAIRS if p[1] == "eager"], ids=str)
def test_eager_meets_once_and_touches_only_scratch(size, collective, algorithm):
    direct = (Kind.REDUCE_FROM, Kind.COPY_FROM)
    for root in roots(collective, size):
        plans = plans_of(collective, algorithm, Topology.flat(size, shared=True), root)
        proof = verify(plans)
        assert set(proof.messages) == set(proof.signals) == set(proof.chunks_written) == {0}
        assert max(proof.rounds) == 1
        assert {s.src for p in plans for s in p.channels[0] if s.kind in direct} <= {Buffer.SCRATCH}


@pytest.mark.parametrize("root", range(4))
def test_an_eager_root_waits_for_nobody(root):
    topology = Topology.flat(4, shared=True)
    for collective in (Collective.BROADCAST, Collective.SCATTER):
        kinds = {step.kind for step in build(collective, "eager", topology, root, root).channels[0]}
        assert Kind.AWAIT not in kinds


@pytest.mark.few(65)
@pytest.mark.parametrize("text", ["64", "8x8", "4x16", "4x4x4", "2x2x2x2x2x2"])
@pytest.mark.parametrize(("collective", "algorithm"), PAIRS, ids=lambda value: getattr(value, "name", value))
def test_a_plan_is_no_longer_than_a_few_lines_per_rank(collective, algorithm, text):
    """What planning costs is the steps it makes: at most four per rank of the job, whatever the layout."""
    for shared in (0, 1):
        topology = Topology.parse(text, shared=shared)
        if not suits(algorithm, topology):
            continue
        longest = max(len(plan.channels[0]) for plan in plans_of(collective, algorithm, topology, 0))
        assert longest <= 4 * 64
        plan = build(collective, algorithm, topology, 0)
        assert len(plan.input) + len(plan.output) + len(plan.scratch) <= 3 * 2 * 64
