"""One rank simulated for all that are alike gives what simulating all gives: same times, on every rank."""

from __future__ import annotations

from typing import Optional

import pytest
from plan.cases import ordered_factorisations
from tuning.machines import laid_out, machine_of

from ddl.topology import Topology
from ddl.tuning.select import Line
from ddl.tuning.simulate import simulation as simulate
from ddl.tuning.simulate.cost import Core, GpuLinks, Machine
from ddl.tuning.simulate.simulation import SimulatedOperation, allreduces
from ddl.tuning.simulate.symmetry import Shifts

KIB = 1024
OPERATIONS = [
    SimulatedOperation(3_000_000),
    SimulatedOperation(900_000, 0.0005),
    SimulatedOperation(40 * KIB, 0.0006),
    SimulatedOperation(2_500_000, 0.002),
]
CORE = Core(overhead_s=2e-6, reduce_bytes_per_s=3e9, receive_bytes_per_s=6e9)
GPUS = GpuLinks(2, 3e9, 2e9, 4e9, 1e-5)  # two links in a host

MACHINES = {
    "hosts": machine_of(1, [12]),
    "links in hosts": machine_of(4, [4]),
    "memory": machine_of(3, [5], shared=True, core=CORE),
    "racks": machine_of(2, [3, 4], shared=True, slower=0.5, core=CORE),
    "aisles": machine_of(2, [2, 2, 2], slower=0.25),
    "one host": machine_of(6, shared=True, core=CORE),
    "64 ranks": machine_of(4, [4, 4], shared=True, slower=0.25),
    "a GPU for two": machine_of(4, [3], shared=True, core=CORE, gpus=GPUS),
    "a GPU for each": machine_of(2, [3, 2], shared=True, slower=0.5, core=CORE, gpus=GPUS),
    "GPUs in one host": machine_of(6, shared=True, core=CORE, gpus=GPUS),
}


def same(machine: Machine, topology: Topology, lines) -> None:
    """Compare all ranks' times with those of the ranks that stand for them."""
    reduced = allreduces(machine, topology, OPERATIONS, lines=lines)
    full = allreduces(machine, topology, OPERATIONS, lines=lines, in_full=True)
    assert set(full.ends) == set(range(machine.size))
    assert reduced.exact
    symmetry = Shifts(topology, machine)
    assert tuple(reduced.ends) == symmetry.representatives
    for rank, ends in full.ends.items():
        assert ends == pytest.approx(reduced.ends[symmetry.representative(rank)], rel=1e-9)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MACHINES)
def test_default_layout(name: str) -> None:
    machine = MACHINES[name]
    lines = (Line(2**63, "multiring", 256 * KIB, False, 3),)
    same(machine, laid_out(machine), lines)


@pytest.mark.few(5)
@pytest.mark.parametrize("mode", ["x".join(map(str, sizes)) for sizes in ordered_factorisations(24)])
def test_every_layout_of_racks(mode: str) -> None:
    """Two ranks x three hosts x four racks, as any dimensions: in some, only few ranks are alike."""
    machine = machine_of(2, [3, 4], slower=0.5)
    same(machine, laid_out(machine, mode), (Line(2**63, "multiring", 512 * KIB, False, 2),))


@pytest.mark.parametrize("mode", ["x".join(map(str, sizes)) for sizes in ordered_factorisations(12)])
def test_every_layout_where_two_ranks_share_a_gpu(mode: str) -> None:
    machine = machine_of(4, [3], slower=0.5, gpus=GPUS)
    same(machine, laid_out(machine, mode), (Line(2**63, "multiring", 512 * KIB, False, 2),))


@pytest.mark.few(38)
@pytest.mark.parametrize("algorithm", ["ring", "multiring", "recursive_doubling", "leaders", "tree"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("networks", [(8,), (2, 4), (3, 2), (7,)])
@pytest.mark.parametrize("gpus", [None, GpuLinks(1, 3e9, 2e9, 4e9)], ids=["hosts", "GPUs"])
def test_every_algorithm(algorithm: str, networks: tuple, shared: bool, gpus: Optional[GpuLinks]) -> None:
    machine = machine_of(2, networks, slower=0.5, shared=shared, gpus=gpus)
    topology = laid_out(machine)
    lines = (Line(2**63, algorithm, 1024 * KIB, False, 2),)
    full = allreduces(machine, topology, OPERATIONS, lines=lines, in_full=True)
    result = allreduces(machine, topology, OPERATIONS, lines=lines)
    assert result.exact
    assert result.seconds == pytest.approx(full.seconds, rel=1e-9)
    assert result.ends[0] == pytest.approx(full.ends[0], rel=1e-9)


def test_who_is_alike() -> None:
    uniform = machine_of(4, [8, 8])
    assert Shifts(laid_out(uniform, "4x8x8"), uniform).representatives == (0,)
    assert Shifts(laid_out(uniform, "256"), uniform).representatives == tuple(range(32))  # a rack's ranks
    assert Shifts(laid_out(uniform, "4x64"), uniform).representatives == tuple(range(0, 32, 4))
    flat = machine_of(4, [64])
    assert Shifts(laid_out(flat, "256"), flat).representatives == (0, 1, 2, 3)
    odd = machine_of(3, [5])
    assert len(Shifts(laid_out(odd, "5x3"), odd).representatives) == 15


def test_every_rank_goes_to_its_representative() -> None:
    for machine in MACHINES.values():
        topology = laid_out(machine)
        symmetry = Shifts(topology, machine)
        for rank in range(machine.size):
            assert symmetry.representative(rank) in symmetry.representatives
            assert symmetry.image(rank, rank) == symmetry.representative(rank)
            assert len({symmetry.image(rank, other) for other in range(machine.size)}) == machine.size


@pytest.mark.parametrize(("ranks", "hosts"), [(4, 12), (4, 5), (3, 8), (3, 7), (1, 12), (8, 25), (5, 40)])
@pytest.mark.parametrize("nbytes", [64, 4 * KIB, 64 * KIB])
def test_beyond_a_power_of_two_doubling_is_an_estimate(
    ranks: int, hosts: int, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No exact symmetry: in full below the limit; above it every rank is taken to be like the first.

    That hides that some are behind others, and that some have less to do: it comes out from half to 1.3 times as long.
    """
    machine = machine_of(ranks, [hosts])
    topology = laid_out(machine)
    lines = (Line(2**63, "recursive_doubling", 0, True),)
    full = allreduces(machine, topology, [SimulatedOperation(nbytes)], lines=lines)
    assert full.exact and len(full.ends) == ranks * hosts
    monkeypatch.setattr(simulate, "MOST_IN_FULL", 10)
    assumed = allreduces(machine, topology, [SimulatedOperation(nbytes)], lines=lines)
    assert not assumed.exact and len(assumed.ends) == 2
    assert 0.5 < assumed.seconds / full.seconds < 1.3
