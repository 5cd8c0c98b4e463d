"""The simulator against what can be worked out by hand."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from tuning.machines import ALPHA, BANDWIDTH, laid_out, machine_of

from ddl.errors import ConfigError
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import Line, select
from ddl.tuning.simulate.cost import Core, Level, Machine
from ddl.tuning.simulate.simulation import Lateness, SimulatedOperation, allreduces

MIB = 1 << 20


def whole(algorithm: str, in_flight: int = 1, piece: int = 0):
    """A selection of one algorithm, in one piece unless said otherwise."""
    return (Line(2**63, algorithm, piece, False, in_flight),)


def seconds(machine: Machine, nbytes: int, lines=(), mode: str = "", **more) -> float:
    return allreduces(machine, laid_out(machine, mode), [SimulatedOperation(nbytes)], lines=lines, **more).seconds


@pytest.mark.parametrize("size", [2, 3, 4, 7, 16])
def test_a_ring_takes_what_the_formula_says(size: int) -> None:
    """2(p-1)(alpha + S/(pB)): Thakur et al., and facts of every textbook."""
    expected = 2 * (size - 1) * (ALPHA + MIB / size / BANDWIDTH)
    assert seconds(machine_of(1, [size]), MIB, whole("ring")) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mode", ["4x2x3", "2x2x2x3", "8x3"])
def test_a_multiring_takes_what_the_formula_says(mode: str) -> None:
    """2 sum_d ((p_d-1) alpha_d + (p_d-1)/p_d S_d/B_d) where every rank has a port of its own."""
    sizes = [int(word) for word in mode.split("x")]
    expected, left = 0.0, float(MIB)
    for p in sizes:
        expected += 2 * (p - 1) * (ALPHA + left / p / BANDWIDTH)
        left /= p
    took = seconds(machine_of(1, [24]), MIB, whole("multiring"), mode)
    assert took == pytest.approx(expected, rel=1e-9)


def test_recursive_doubling_exchanges_all_in_each_round() -> None:
    expected = 3 * (ALPHA + MIB / BANDWIDTH)
    took = seconds(machine_of(1, [8]), MIB, whole("recursive_doubling"))
    # Beside the data go empty messages, which cost their latency where nothing else hides it.
    assert expected <= took <= expected + 2 * ALPHA


def test_the_rings_of_a_host_share_its_port() -> None:
    """Four ranks reduce among themselves at once, then four rings between two hosts use one port together."""
    took = seconds(machine_of(4, [2]), MIB, whole("multiring"), "4x2")
    inside = 2 * 3 * (ALPHA / 4 + MIB / 4 / (4 * BANDWIDTH))
    between = 2 * (ALPHA + 4 * MIB / 8 / BANDWIDTH)
    assert took == pytest.approx(inside + between, rel=1e-9)


def test_a_racks_uplink_is_what_its_hosts_share() -> None:
    """A flat ring over 2 racks x 2 hosts: six messages in a row cross each uplink, at a quarter of the rate.

    Those behind the first are waiting there when it has left, so only one latency, of two networks, is seen.
    """
    took = seconds(machine_of(1, [2, 2], slower=0.25), MIB, whole("ring"))
    assert took == pytest.approx(2 * ALPHA + 6 * MIB / 4 / (BANDWIDTH / 4), rel=1e-9)


def test_pieces_in_flight_hide_latency() -> None:
    """Two hosts, 16 pieces: one at a time pays two latencies a piece, two at a time keep the wire busy."""
    machine, pieces = machine_of(1, [2]), 16
    sent = MIB / 2 / BANDWIDTH  # in each of the two steps of a piece
    alone = seconds(machine, pieces * MIB, whole("ring", 1, MIB))
    assert alone == pytest.approx(pieces * 2 * (ALPHA + sent), rel=1e-9)
    two = seconds(machine, pieces * MIB, whole("ring", 2, MIB))
    assert pieces * 2 * sent + ALPHA <= two * (1 + 1e-9)
    assert two < alone - (pieces - 2) * ALPHA


def test_the_engines_pieces_are_whole_cache_lines_of_every_chunk() -> None:
    """1 MiB cut for 12 ranks: 1365 lines of 64 bytes for each; the rest is a second piece."""
    result = allreduces(machine_of(1, [12]), Topology.flat(12), [SimulatedOperation(MIB)], lines=whole("ring", 1, MIB))
    assert result.messages == 2 * 22
    exact = 64 * 12 * (MIB // (64 * 12))
    result = allreduces(
        machine_of(1, [12]), Topology.flat(12), [SimulatedOperation(exact)], lines=whole("ring", 1, MIB)
    )
    assert result.messages == 22


def test_ranks_that_share_memory_read_and_write_it() -> None:
    """Four ranks: two meets, and each byte of the buffer is read by one rank from four, and written to four."""
    machine = machine_of(4, shared=True)
    lines = whole("direct")
    # reduce: 4 reads and a write of a quarter; copy to three: three writes of a quarter; four ranks at once.
    expected = 2 * 1e-6 + 4 * (5 + 3) * MIB / 4 / 2e10
    assert seconds(machine, MIB, lines) == pytest.approx(expected, rel=1e-9)


def test_a_core_is_busy_for_each_message() -> None:
    plain = seconds(machine_of(1, [2]), MIB, whole("ring"))
    busy = seconds(machine_of(1, [2], core=Core(overhead_s=1e-4)), MIB, whole("ring"))
    # A send delays its message, a receive what follows it; both ranks at once.
    assert busy == pytest.approx(plain + 4 * 1e-4, rel=1e-9)


def test_a_slow_reduction_limits_what_arrives() -> None:
    slow = seconds(machine_of(1, [2], core=Core(reduce_bytes_per_s=BANDWIDTH / 4)), MIB, whole("ring"))
    assert slow == pytest.approx(2 * ALPHA + 4 * MIB / 2 / BANDWIDTH + MIB / 2 / BANDWIDTH, rel=1e-9)


def test_headers_take_their_share() -> None:
    machine = machine_of(1, [2])
    assert seconds(replace(machine, wire_bytes_per_byte=1.25), MIB, whole("ring")) == pytest.approx(
        2 * (ALPHA + 1.25 * MIB / 2 / BANDWIDTH), rel=1e-9
    )


def test_rails_add_up() -> None:
    machine = machine_of(1, [2])
    port = machine.levels[1]
    assert port.link is not None
    double = replace(machine, levels=(machine.levels[0], replace(port, link=replace(port.link, rails=2))))
    assert seconds(double, MIB, whole("ring")) == pytest.approx(2 * (ALPHA + MIB / 4 / BANDWIDTH), rel=1e-9)


def test_all_wait_for_a_straggler() -> None:
    machine = machine_of(1, [4])
    usual = allreduces(machine, Topology.flat(4), [SimulatedOperation(MIB)], lines=whole("ring"))
    late = allreduces(
        machine, Topology.flat(4), [SimulatedOperation(MIB)], lines=whole("ring"), stragglers={2: Lateness(plus_s=0.02)}
    )
    assert set(late.ends) == {0, 1, 2, 3}
    # Its first message has its neighbours wait; the others' are there already. What is left is the straggler's own way.
    assert min(min(ends) for ends in late.ends.values()) >= 0.02
    assert 0.02 < late.seconds <= 0.02 + usual.seconds


def test_a_slow_rank_is_late_in_proportion() -> None:
    late = allreduces(
        machine_of(1, [2]),
        Topology.flat(2),
        [SimulatedOperation(MIB, 0.1), SimulatedOperation(MIB, 0.2)],
        stragglers={1: Lateness(factor=1.5)},
    )
    assert late.ends[0][0] > 0.15 and late.ends[0][1] > 0.3
    assert late.ends[0][0] < 0.2


def test_operations_run_in_the_order_of_submission() -> None:
    machine = machine_of(1, [2])
    alone = seconds(machine, 8 * MIB)
    result = allreduces(
        machine,
        Topology.flat(2),
        [SimulatedOperation(8 * MIB), SimulatedOperation(8 * MIB), SimulatedOperation(8 * MIB, 1.0)],
    )
    first, second, third = result.ends[0]
    assert first == pytest.approx(alone)
    assert first < second <= 2 * alone * (1 + 1e-9)  # at most: latency is hidden
    assert third == pytest.approx(1.0 + alone)


def test_a_small_operation_does_not_wait_behind_a_large_one() -> None:
    result = allreduces(machine_of(1, [2]), Topology.flat(2), [SimulatedOperation(64 * MIB), SimulatedOperation(1024)])
    assert result.algorithms == ["multiring", "recursive_doubling"]
    assert result.ends[0][1] < result.ends[0][0] / 100


def test_the_plans_are_those_of_the_selection() -> None:
    machine = machine_of(2, [4], shared=True)
    topology = laid_out(machine)
    lines = select(Collective.ALLREDUCE, topology)
    result = allreduces(machine, topology, [SimulatedOperation(1024), SimulatedOperation(8 * MIB)])
    assert result.algorithms == [line.algorithm for line in lines]
    # One rank stands for all eight: 4 pieces, 2 * 3 messages each.
    assert result.messages == 4 * 6 + 1 * allreduces(machine, topology, [SimulatedOperation(1024)]).messages


def test_the_same_twice() -> None:
    machine = machine_of(2, [2, 3], shared=True, slower=0.25, core=Core(overhead_s=1e-6))
    runs = [
        allreduces(
            machine, laid_out(machine), [SimulatedOperation(5 * MIB), SimulatedOperation(3 * MIB, 0.001)], watch=[0]
        )
        for _ in range(2)
    ]
    assert dataclasses.asdict(runs[0]) == dataclasses.asdict(runs[1])


def test_one_rank_has_nothing_to_wait_for() -> None:
    result = allreduces(machine_of(1), Topology.flat(1), [SimulatedOperation(MIB, 0.5)])
    assert result.ends == {0: [0.5]} and result.messages == 0


def test_spans_of_a_rank_that_is_watched() -> None:
    machine = machine_of(2, [2], shared=True)
    result = allreduces(machine, laid_out(machine), [SimulatedOperation(4 * MIB)], watch=[3])
    assert {span.dimension for span in result.spans[3]} == {0, 1}
    assert all(0 <= span.begin < span.end <= result.seconds for span in result.spans[3])


def test_what_does_not_fit_is_refused() -> None:
    machine = machine_of(1, [4])
    with pytest.raises(ConfigError, match="8 ranks, the machine 4"):
        allreduces(machine, Topology.flat(8), [SimulatedOperation(1)])
    with pytest.raises(ConfigError, match="in order"):
        allreduces(machine, Topology.flat(4).with_order((1, 0, 2, 3)), [SimulatedOperation(1)])
    with pytest.raises(ConfigError, match="rank 4: the machine has ranks 0 to 3"):
        allreduces(machine, Topology.flat(4), [SimulatedOperation(1)], stragglers={4: Lateness()})
    with pytest.raises(ConfigError, match="joins 3 units"):
        Machine((Level("ranks", 3),))
    with pytest.raises(ConfigError, match="do not fill whole"):
        machine_of(1, [4, 2]).with_hosts(6)
