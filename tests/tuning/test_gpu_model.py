"""Arrays on GPUs in the simulator: closed forms of the pipeline down, plan, up, and bounds that no time may break."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuning.machines import laid_out

from ddl.topology import Link
from ddl.tuning.select import Line
from ddl.tuning.simulate.cost import Core, GpuLinks, Level, Machine, SharedMemory
from ddl.tuning.simulate.lane import STAGING, Lateness
from ddl.tuning.simulate.simulation import SimulatedOperation, SimulatedTimes, allreduces

KIB, MIB = 1 << 10, 1 << 20
PIECE = MIB
FREE = SharedMemory(0.0, inf)  # a host whose memory costs nothing
B = 1e9


def one_host(ranks: int, gpus: Optional[GpuLinks], memory: SharedMemory = FREE, core: Core = Core()) -> Machine:  # noqa: B008
    return Machine((Level("ranks", ranks),), memory, core, gpus=gpus)


def times(
    machine: Machine, nbytes: int, *ready: float, in_flight: int = 2, algorithm: str = "direct"
) -> SimulatedTimes:
    operations = [SimulatedOperation(nbytes, begin) for begin in ready or (0.0,)]
    lines = (Line(2**63, algorithm, PIECE, False, in_flight),)
    return allreduces(machine, laid_out(machine), operations, lines=lines, watch=[0])


def test_a_pipeline_takes_one_direction_and_a_piece() -> None:
    """If only the link costs, both directions run at once: the last piece goes up behind all that came down."""
    machine = one_host(4, GpuLinks(4, B, B, latency_s=1e-4))
    assert times(machine, 16 * MIB).seconds == pytest.approx((16 * MIB + PIECE) / B + 2e-4, rel=1e-6)
    assert times(machine, 3 * KIB).seconds == pytest.approx(2 * 3 * KIB / B + 2e-4, rel=1e-6)


def test_the_slower_direction_decides() -> None:
    machine = one_host(4, GpuLinks(4, 4 * B, B))
    assert times(machine, 16 * MIB).seconds == pytest.approx(PIECE / (4 * B) + 16 * MIB / B, rel=1e-6)


def test_ranks_on_the_same_gpu_share_its_link() -> None:
    alone = times(one_host(4, GpuLinks(4, B, B)), 8 * MIB).seconds
    shared = times(one_host(4, GpuLinks(2, B, B)), 8 * MIB).seconds
    assert shared == pytest.approx(2 * alone, rel=1e-6)


def test_directions_that_disturb_each_other() -> None:
    """If both together carry what one direction carries, all bytes pass one behind the other."""
    machine = one_host(2, GpuLinks(2, B, B, B))
    assert times(machine, 16 * MIB).seconds == pytest.approx(2 * 16 * MIB / B, rel=1e-6)


def test_the_core_decides_where_it_is_slower_than_the_link() -> None:
    core = Core(copy_bytes_per_s=B / 4)  # of two ranks, each reads and writes every byte twice
    plan = times(one_host(2, None, core=core), 16 * MIB).seconds
    staged = times(one_host(2, GpuLinks(2, B, B), core=core), 16 * MIB).seconds
    assert plan == pytest.approx(2 * 16 * MIB / (B / 4), rel=1e-6)
    assert plan < staged <= plan + 2 * PIECE / B * (1 + 1e-6)


def test_the_memory_of_the_host_carries_copies_too() -> None:
    """Each byte is written once and read once by copies, beside what the plan reads and writes."""
    memory = SharedMemory(0.0, 4 * B)
    plan = times(one_host(2, None, memory), 16 * MIB).seconds
    staged = times(one_host(2, GpuLinks(2, 100 * B, 100 * B), memory), 16 * MIB).seconds
    assert plan == pytest.approx(2 * 2 * 16 * MIB / (4 * B), rel=1e-6)
    assert staged == pytest.approx(2 * 4 * 16 * MIB / (4 * B), rel=1e-6)


def test_copies_of_the_next_operation_come_behind_those_of_the_last() -> None:
    machine = one_host(2, GpuLinks(2, B, B))
    (first, second) = times(machine, 8 * MIB, 0.0, 1e-9).ends[0]
    assert first == pytest.approx((8 * MIB + PIECE) / B, rel=1e-5)
    assert second == pytest.approx((16 * MIB + PIECE) / B, rel=1e-5)


def test_a_late_rank_is_waited_for_but_not_by_copies_down() -> None:
    machine = one_host(2, GpuLinks(2, B, B))
    lines = (Line(2**63, "direct", PIECE, False, 2),)
    late = {1: Lateness(plus_s=0.1)}
    operations = [SimulatedOperation(8 * MIB)]
    told = allreduces(machine, laid_out(machine), operations, lines=lines, stragglers=late, watch=[0])
    downs = [span for span in told.spans[0] if span.dimension == STAGING]
    assert downs[0].begin == 0 and downs[0].end == pytest.approx(8 * MIB / B, rel=1e-6)
    assert told.seconds == pytest.approx(0.1 + (8 * MIB + PIECE) / B, rel=1e-6)


def test_copies_are_recorded() -> None:
    spans = times(one_host(2, GpuLinks(2, B, B)), 4 * MIB).spans[0]
    (span,) = [span for span in spans if span.dimension == STAGING]  # both directions overlap
    assert (span.begin, span.end) == (0.0, pytest.approx((4 * MIB + PIECE) / B, rel=1e-6))


def test_the_plan_is_the_same_with_and_without_gpus() -> None:
    host = (Level("ranks", 2), Level("hosts", 3, Link(1e-5, B)))
    core = Core(overhead_s=1e-6, reduce_bytes_per_s=5 * B)
    plain = Machine(host, SharedMemory(1e-6, 20 * B), core)
    staged = replace(plain, gpus=GpuLinks(2, 50 * B, 50 * B))
    without, with_gpus = (times(machine, 8 * MIB, algorithm="multiring") for machine in (plain, staged))
    assert without.messages == with_gpus.messages > 0 and without.algorithms == with_gpus.algorithms
    # Pieces that come one by one overlap dimensions better than pieces that all begin at once (docs/simulate.md).
    assert 0.9 * without.seconds < with_gpus.seconds < 1.2 * without.seconds


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.sampled_from([2, 3, 4]),
    nbytes=st.integers(1, 9 * MIB),
    down=st.floats(0.2, 20),
    up=st.floats(0.2, 20),
    both=st.floats(0.5, 20),
    rate=st.floats(0.2, 20),
    in_flight=st.integers(1, 4),
)
def test_no_time_is_below_the_slowest_stage_or_above_all_of_them(
    ranks: int, nbytes: int, down: float, up: float, both: float, rate: float, in_flight: int
) -> None:
    links = GpuLinks(ranks, down * B, up * B, both * B, 1e-5)
    core = Core(copy_bytes_per_s=rate * B)
    plan = times(one_host(ranks, None, core=core), nbytes, in_flight=in_flight).seconds
    seconds = times(one_host(ranks, links, core=core), nbytes, in_flight=in_flight).seconds
    stages = [nbytes / (down * B), nbytes / (up * B), 2 * nbytes / (both * B), plan]
    assert max(stages) * (1 - 1e-9) + 1e-5 <= seconds
    assert seconds <= sum(stages) * (1 + 1e-9) + 2e-5 * (1 + nbytes // PIECE)
