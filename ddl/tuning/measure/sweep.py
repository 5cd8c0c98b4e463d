"""Makes a table: measures a job's links, and at each size which algorithm is fastest, in the seconds that it is given.

Runs on all ranks of a job, before or instead of the job's work: as ``ddl tune``, or at the start in mode ``p``. Nothing
of it stays: communicators and connections that it makes are closed when it returns.
"""

from __future__ import annotations

import datetime
import time
from math import prod
from typing import Callable, Dict, Optional, Sequence, Tuple

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
from ddl.tuning.measure.timed_calls import bytes_for
from ddl.tuning.measure.turns import RaceOutcome
from ddl.tuning.select import Lines, select
from ddl.tuning.table import MeasuredSize, Table

__all__ = ["SIZES", "measure"]

SIZES = (8, *(4**power for power in range(3, 14)))  #: bytes, up to 64 MiB
#: Ranks of the largest job whose plans are proved here, in half a second. For larger ones the same planners' plans for
#: as many dimensions are.
_MOST_PROVED = 64

#: Told on all ranks after each size: what came out, or None where the size would have taken too long.
Progress = Callable[[Collective, int, Sequence[Candidate], Optional[RaceOutcome]], None]


def measure(
    world: Communicator,
    collectives: Sequence[Collective],
    sizes: Sequence[int],
    seconds: float,
    progress: Progress = lambda collective, nbytes, among, outcome: None,
    tell: Tell = lambda text: None,
) -> Table:
    """Measure and return the table, the same on all ranks. Collective, blocking, for about ``seconds``.

    ``sizes`` are in bytes; the larger ones are left out where time does not suffice. ``world`` must have no table and
    force no algorithm. Racks are looked for, in half of the time at most, and where they are of use the lines are
    measured with them; ``tell`` says what came of it. Raises ``InternalError`` if a candidate is wrong, and what
    collectives raise.
    """
    begin = time.perf_counter()
    whole = world.split(0)
    assert whole is not None
    control, racks = find_racks(whole, seconds, tell)
    among = candidates(collectives, control.topology)
    _prove(control, collectives, among)
    race = Race(control, among, begin)
    machine = machine_of(control)
    lines: Dict[Collective, Lines] = {}
    measured: Dict[Collective, Tuple[MeasuredSize, ...]] = {}
    for number, collective in enumerate(collectives):
        wanted = sorted({bytes_for(collective, world.size, nbytes) for nbytes in sizes})
        outcomes: Dict[int, RaceOutcome] = {}
        expected: Dict[int, float] = {}
        before = 0
        for place, nbytes in enumerate(wanted):
            left = (seconds - race.elapsed()) / (len(collectives) - number)
            grown = {number: took * nbytes / before for number, took in expected.items()}
            outcome = race.run(collective, nbytes, grown, left / (len(wanted) - place), left) if left > 0 else None
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
    table = Table.parse(control.broadcast_object(table.text()))  # rank 0's, whose date and host names count
    whole.barrier()
    whole.close()
    return table


def _row(nbytes: int, among: Sequence[Candidate], outcome: RaceOutcome) -> MeasuredSize:
    winner, default = among[outcome.chosen], among[outcome.default]
    return MeasuredSize(nbytes, winner.algorithm, outcome.seconds, default.algorithm, outcome.default_seconds)


def _prove(control: Communicator, collectives: Sequence[Collective], among: Sequence[Candidate]) -> None:
    """Prove, on one rank for all, the plans of everything that will be tried. Raises ``InternalError`` on all ranks."""
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
