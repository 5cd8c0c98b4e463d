"""Runs all-reduces in virtual time: the same plans that the native core runs, on a described ``Machine``.

Algorithm and pieces are chosen as in a job (select.py). Each lane of the core is simulated by itself (lane.py): small
and large operations do not slow each other down. Of ranks that do the same at the same time, only one is simulated
(symmetry.py). Deterministic; no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Sequence

from ddl.errors import ConfigError
from ddl.plan.ir import Collective
from ddl.topology import Topology
from ddl.tuning.select import Line, select
from ddl.tuning.simulate.cost import Machine
from ddl.tuning.simulate.lane import Lateness, SimulatedLane, SimulatedOperation, Span
from ddl.tuning.simulate.symmetry import NoSymmetry, Symmetry, symmetry_of

__all__ = ["Lateness", "SimulatedOperation", "SimulatedTimes", "Span", "allreduces"]

MOST_IN_FULL = 1024  #: up to so many ranks, all are simulated if the symmetry would not be exact


@dataclass
class SimulatedTimes:
    """The times of operations, in seconds. ``ends[rank][i]``: the end of operation *i*, for each representative."""

    ends: Dict[int, List[float]]
    spans: Dict[int, List[Span]] = field(default_factory=dict)
    algorithms: List[str] = field(default_factory=list)  #: of each operation
    exact: bool = True  #: False: some times are estimates, because the symmetry is not exact
    messages: int = 0  #: number of simulated messages
    events: int = 0

    @property
    def seconds(self) -> float:
        """Return when the last operation ended on the last rank."""
        return max((end for ends in self.ends.values() for end in ends), default=0.0)


def allreduces(
    machine: Machine,
    topology: Topology,
    operations: Sequence[SimulatedOperation],
    *,
    lines: Sequence[Line] = (),
    stragglers: Mapping[int, Lateness] = {},  # noqa: B006  (read only)
    watch: Sequence[int] = (),
    in_full: bool = False,
) -> SimulatedTimes:
    """Simulate all-reduces that every rank submits in this order, and return when they end.

    ``topology`` lays out the machine's ranks, in their order (``Topology.parse``). ``lines`` choose algorithm and
    pieces by size; the default is what ``select`` returns. The spans of the ranks ``watch`` are recorded. ``in_full``
    simulates every rank and uses no symmetry. Raises ``ConfigError`` if machine and topology do not fit, or if the
    simulation would take too long.
    """
    if topology.size != machine.size or topology.order != tuple(range(topology.size)):
        raise ConfigError(
            f"topology {topology} has {topology.size} ranks, the machine {machine.size}; give one rank each, in order"
        )
    for rank in (*stragglers, *watch):
        if not 0 <= rank < machine.size:
            raise ConfigError(f"rank {rank}: the machine has ranks 0 to {machine.size - 1}")
    lines = lines or select(Collective.ALLREDUCE, topology)
    chosen = [next(line for line in lines if operation.nbytes <= line.max_bytes) for operation in operations]
    outcome = SimulatedTimes({}, algorithms=[line.algorithm for line in chosen])
    if topology.size == 1:
        late = stragglers.get(0, Lateness())
        outcome.ends[0] = [late.of(operation.ready_s) for operation in operations]
        outcome.spans = {rank: [] for rank in watch}
        return outcome
    lanes = []
    for line in lines:
        of_line = {number: operation for number, operation in enumerate(operations) if chosen[number] is line}
        symmetry: Symmetry = NoSymmetry(topology.size)
        if not in_full and not stragglers:
            symmetry = symmetry_of(line.algorithm, topology, machine, MOST_IN_FULL)
        if of_line:
            lanes.append(SimulatedLane(machine, topology, symmetry, line, of_line, stragglers, watch))
            lanes[-1].run()
            outcome.exact &= symmetry.exact
    _collect(outcome, lanes, len(operations), watch)
    return outcome


def _collect(outcome: SimulatedTimes, lanes: Sequence[SimulatedLane], count: int, watch: Sequence[int]) -> None:
    """Enter the times of all lanes. Lanes may have different representatives: ``lane.of`` returns that of a rank."""
    for rank in sorted({rank for lane in lanes for rank in lane.ranks}):
        ends = [0.0] * count
        for lane in lanes:
            for number, end in lane.of(rank).ends.items():
                ends[number] = end
        outcome.ends[rank] = ends
    for rank in watch:
        outcome.spans[rank] = sorted(
            (span for lane in lanes for span in lane.of(rank).spans), key=lambda span: (span.begin, span.operation)
        )
    outcome.messages = sum(lane.messages for lane in lanes)
    outcome.events = sum(lane.fluid.events for lane in lanes)
