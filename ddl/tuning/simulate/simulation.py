"""Runs all-reduces in virtual time: the same plans that the native core runs, on a ``Machine`` instead of a machine.

Algorithm and pieces are chosen as a job would choose them (select.py), and each lane of the core is run by itself
(lane.py): the lane of small operations neither slows the large ones nor they it. Ranks that are alike are simulated
once (symmetry.py). Deterministic; no I/O.
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
from ddl.tuning.simulate.symmetry import Everybody, Symmetry, symmetry_of

__all__ = ["Lateness", "SimulatedOperation", "SimulatedTimes", "Span", "allreduces"]

MOST_IN_FULL = 1024  #: ranks, for an algorithm whose symmetry would have to be assumed


@dataclass
class SimulatedTimes:
    """When what ended, in seconds. ``ends[rank][i]``: operation *i* on each rank that was simulated for its likes."""

    ends: Dict[int, List[float]]
    spans: Dict[int, List[Span]] = field(default_factory=dict)
    algorithms: List[str] = field(default_factory=list)  #: of each operation
    exact: bool = True  #: False: some operations were estimated, by a symmetry that was assumed
    messages: int = 0  #: that were simulated
    events: int = 0

    @property
    def seconds(self) -> float:
        """When the last rank had ended the last operation."""
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

    ``topology`` lays out the machine's ranks, in their order (``Topology.parse``); ``lines`` choose algorithm and
    pieces by size, by default what ``select`` returns. Of the ranks ``watch`` it is recorded what they did when.
    ``in_full`` simulates every rank, alike or not. Raises ``ConfigError`` where machine and topology do not fit, or
    more would have to be simulated than is sensible.
    """
    if topology.size != machine.size or topology.order != tuple(range(topology.size)):
        raise ConfigError(
            f"topology {topology} has {topology.size} ranks, the machine {machine.size}; give one rank each, in order"
        )
    for rank in (*stragglers, *watch):
        if not 0 <= rank < machine.size:
            raise ConfigError(f"rank {rank} is none of the machine's {machine.size} ranks")
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
        symmetry: Symmetry = Everybody(topology.size)
        if not in_full and not stragglers:
            symmetry = symmetry_of(line.algorithm, topology, machine, MOST_IN_FULL)
        if of_line:
            lanes.append(SimulatedLane(machine, topology, symmetry, line, of_line, stragglers, watch))
            lanes[-1].run()
            outcome.exact &= symmetry.exact
    _collect(outcome, lanes, len(operations), watch)
    return outcome


def _collect(outcome: SimulatedTimes, lanes: Sequence[SimulatedLane], count: int, watch: Sequence[int]) -> None:
    """Enter what the lanes have found. Representatives may differ: each lane answers for those its own stand for."""
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
