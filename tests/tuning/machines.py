"""Small machines for the tests of the simulator, and their topologies."""

from __future__ import annotations

from typing import Optional, Sequence

from ddl._comm.group import discover
from ddl.topology import Link, Topology
from ddl.tuning.simulate.cost import Core, GpuLinks, Level, Machine, SharedMemory

ALPHA, BANDWIDTH = 1e-5, 1e9


def machine_of(
    ranks: int = 1,
    networks: Sequence[int] = (),
    *,
    shared: bool = False,
    core: Core = Core(),  # noqa: B008
    slower: float = 1.0,
    gpus: Optional[GpuLinks] = None,
) -> Machine:
    """``ranks`` per host, then hosts, racks …: each network beyond the first has ``slower`` times the bandwidth."""
    levels = [Level("ranks", ranks, None if shared or ranks == 1 else Link(ALPHA / 4, 4 * BANDWIDTH))]
    for number, size in enumerate(networks):
        levels.append(Level(f"level {number + 1}", size, Link(ALPHA * (number + 1), BANDWIDTH * slower**number)))
    return Machine(tuple(levels), SharedMemory(1e-6, 2e10) if shared else None, core, gpus=gpus)


def laid_out(machine: Machine, mode: str = "") -> Topology:
    return discover(machine.hosts(), mode)
