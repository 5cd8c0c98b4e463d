"""Makes a table: measures a job's links, and which algorithm is fastest at each size, in a given time.

It runs on all ranks of a job, as ``ddl tune``, or at the start of a job in mode ``p``. When it returns, it has closed
all communicators and connections that it has opened.
"""

from __future__ import annotations

import datetime
from math import prod
from typing import Callable, Dict, Optional, Sequence, Tuple

from ddl import clock
from ddl.communicator import Communicator
from ddl.errors import InternalError
from ddl.plan import build
from ddl.plan.checks import PlanError
from ddl.plan.ir import Collective
from ddl.plan.verify import verify
from ddl.topology import Topology
from ddl.tuning.candidates import Candidate, candidates
from ddl.tuning.choose import lines_of
from ddl.tuning.measure.find_racks import Tell, find_racks
from ddl.tuning.measure.links import machine_of
from ddl.tuning.measure.race import Race
from ddl.tuning.measure.scope import SIZES
from ddl.tuning.measure.timed_arrays import ON_HOST
from ddl.tuning.measure.timed_calls import bytes_for
from ddl.tuning.measure.turns import RaceOutcome
from ddl.tuning.select import Lines, select
from ddl.tuning.table import MeasuredSize, Table

__all__ = ["SIZES", "measure"]

#: Ranks of the largest job whose plans are proved here, in half a second. For a larger job, plans for fewer ranks in as
#: many dimensions are proved, by the same planners.
_MOST_PROVED = 64

#: Called on all ranks after each size with the outcome, or with None if the size would have taken too long.
Progress = Callable[[Collective, int, Sequence[Candidate], Optional[RaceOutcome]], None]


def measure(
    world: Communicator,
    collectives: Sequence[Collective],
    sizes: Sequence[int],
    seconds: float,
    progress: Progress = lambda collective, nbytes, among, outcome: None,
    tell: Tell = lambda text: None,
    device: int = ON_HOST,
) -> Table:
    """Measure and return the table, the same on all ranks. Collective, blocking, for about ``seconds``.

    ``sizes`` are in bytes; if time is short, the larger ones are skipped. ``world`` must have no table and force no
    algorithm. At most half of the time is for a search for racks. If racks make it faster, the lines are measured with
    them; ``tell`` gets the result. ``device``: the GPU on which this rank's arrays are, or ``ON_HOST``. Raises
    ``InternalError`` if a candidate is wrong, and the errors of collectives.
    """
    begin = clock.now()
    whole = world.split(0)
    assert whole is not None
    control, racks = find_racks(whole, seconds, tell)
    among = candidates(collectives, control.topology)
    _prove(control, collectives, among)
    race = Race(control, among, begin, device)
    machine = machine_of(control)
    lines: Dict[Collective, Lines] = {}
    measured: Dict[Collective, Tuple[MeasuredSize, ...]] = {}
    for number, collective in enumerate(collectives):
        wanted = sorted({bytes_for(collective, world.size, nbytes) for nbytes in sizes})
        outcomes: Dict[int, RaceOutcome] = {}
        expected: Dict[int, float] = {}
        before = 0
        for place, nbytes in enumerate(wanted):
            remaining = (seconds - race.elapsed()) / (len(collectives) - number)
            grown = {candidate: before_s * nbytes / before for candidate, before_s in expected.items()}
            share = remaining / (len(wanted) - place)
            outcome = race.run(collective, nbytes, grown, share, remaining) if remaining > 0 else None
            progress(collective, nbytes, among, outcome)
            if outcome is None:
                break
            expected, before = grown, nbytes
            outcomes[nbytes] = outcome
        chosen = {
            nbytes: among[outcome.chosen].line(collective, control.topology) for nbytes, outcome in outcomes.items()
        }
        lines[collective] = lines_of(chosen, select(collective, control.topology))
        measured[collective] = tuple(_row(nbytes, among, outcome) for nbytes, outcome in outcomes.items())
    table = Table(
        lines=lines,
        cluster=control.job.cluster(),
        topology=str(control.topology),
        local_size=control.topology.local_size,
        date=datetime.date.today().isoformat(),
        racks=racks,
        measured=measured,
        machine=machine,
    )
    table = Table.parse(control.broadcast_object(table.text()))  # all use the table of rank 0, with its date
    whole.barrier()
    whole.close()
    return table


def _row(nbytes: int, among: Sequence[Candidate], outcome: RaceOutcome) -> MeasuredSize:
    winner, default = among[outcome.chosen], among[outcome.default]
    return MeasuredSize(nbytes, winner.algorithm, outcome.seconds, default.algorithm, outcome.default_seconds)


def _prove(control: Communicator, collectives: Sequence[Collective], among: Sequence[Candidate]) -> None:
    """Prove, on rank 0, the plans of all candidates. Raises ``InternalError`` on all ranks."""
    topology = _provable(control.topology)
    problem = ""
    if control.rank == 0:
        try:
            for collective in collectives:
                for name in dict.fromkeys(
                    candidate.algorithm for candidate in among if candidate.suits(collective, topology)
                ):
                    verify([build(collective, name, topology, rank) for rank in range(topology.size)])
        except PlanError as error:
            problem = str(error)
    problem = control.broadcast_object(problem)
    if problem:
        raise InternalError(f"a plan is wrong: {problem}")


def _provable(topology: Topology) -> Topology:
    sizes = [dimension.size for dimension in topology.dimensions]
    if topology.size <= _MOST_PROVED:
        return topology
    while prod(sizes) > _MOST_PROVED:
        sizes[sizes.index(max(sizes))] -= 1
    shared = sum(dimension.shared for dimension in topology.dimensions)
    return Topology.parse("x".join(map(str, sizes)), shared=shared)
