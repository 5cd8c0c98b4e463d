"""Proves the multi-ring for all ordered factorisations of 24, 32 and 48, and what has half its steps for 24 and 32.

Counted is what it sends, and the counts are the design's: 2*sum(p_d - 1) messages and 2*S*(1 - 1/N) bytes per rank;
where the innermost dimension is shared memory, its part goes without messages and the rest carries 1/(inner size) of
the bytes.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from plan.cases import mode, ordered_factorisations, plans_of

from ddl.plan import Collective, Kind
from ddl.plan.verify import verify
from ddl.topology import Topology

NBYTES = 1 << 20
MODES = [mode(sizes) for size in (24, 32, 48) for sizes in ordered_factorisations(size)]
FEWER = [text for text in MODES if Topology.parse(text).size < 48]


def test_all_factorisations_are_here():
    assert len(MODES) == len(set(MODES)) == 20 + 16 + 48


@pytest.mark.few(21)
@pytest.mark.parametrize("text", MODES)
@pytest.mark.parametrize("shared", [0, 1])
def test_allreduce(text, shared):
    topology = Topology.parse(text, shared=shared)
    size, local = topology.size, topology.local_size
    plans = plans_of(Collective.ALLREDUCE, "multiring", topology)
    hops = sum(d.size - 1 for d in topology.dimensions if not d.shared)
    for in_place in (False, True):
        proof = verify(plans, in_place=in_place)
        assert set(proof.messages) == {2 * hops}
        assert set(proof.signals) == {0}
        assert proof.bytes_sent(0, NBYTES) == 2 * Fraction(NBYTES, local) * (1 - Fraction(local, size))
        assert len(set(proof.chunks_sent)) == 1
        assert set(proof.chunks_read) == set(proof.chunks_written) == {(local - 1) * size // local}
        assert set(proof.rounds) == {2 * hops + (2 if local > 1 else 0)}
    meets = [step.kind for step in plans[0].channels[0]].count(Kind.NOTIFY)
    assert meets == (2 if local > 1 else 0)


@pytest.mark.few(110)
@pytest.mark.parametrize("text", FEWER)
@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("collective", [Collective.REDUCESCATTER, Collective.ALLGATHER], ids=lambda c: c.name)
def test_halves_of_allreduce(collective, text, shared):
    topology = Topology.parse(text, shared=shared)
    size, local = topology.size, topology.local_size
    proof = verify(plans_of(collective, "multiring", topology))
    assert set(proof.messages) == {sum(d.size - 1 for d in topology.dimensions if not d.shared)}
    assert proof.bytes_sent(size - 1, NBYTES) == Fraction(NBYTES, local) * (1 - Fraction(local, size))
    assert len(set(proof.chunks_sent)) == 1


@pytest.mark.few(106)
@pytest.mark.parametrize("text", FEWER)
@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.REDUCE], ids=lambda c: c.name)
@pytest.mark.parametrize("shared", [0, 1])
def test_rooted(collective, text, shared):
    """In place where memory is shared, not in place elsewhere; ``test_exhaustive`` has all four for small sizes."""
    topology = Topology.parse(text, shared=shared)
    size, local = topology.size, topology.local_size
    proof = verify(plans_of(collective, "multiring", topology, root=size // 2 + 1), in_place=bool(shared))
    # Every host but the root's is reached by exactly one copy of the buffer.
    assert sum(proof.chunks_sent) == (size // local - 1) * proof.chunks


@pytest.mark.parametrize("text", [m for m in MODES if m.count("x") >= 2 and m.endswith("x2")])
def test_several_shared_dimensions_are_taken_as_one(text):
    shared = text.count("x")
    topology = Topology.parse(text, shared=shared)
    proof = verify(plans_of(Collective.ALLREDUCE, "multiring", topology), in_place=True)
    assert set(proof.messages) == {2}
    assert set(proof.rounds) == {4}
