"""Prints the results of a simulation: a table with a line per size and layout, and the assumptions."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from ddl.text.columns import aligned
from ddl.text.units import exact_bytes_text
from ddl.tools.doctor.phrases import duration
from ddl.tools.simulate.description import Assumption
from ddl.tools.simulate.scenario import Scenario
from ddl.tuning.simulate.cost import Machine
from ddl.tuning.simulate.simulation import SimulatedTimes
from ddl.tuning.simulate.training import SimulatedStep, Workload

__all__ = ["allreduce_json", "allreduce_table", "assumed", "notes", "training_json", "training_table"]

Steps = Sequence[Tuple[Scenario, SimulatedStep]]
Reductions = Sequence[Tuple[Scenario, int, SimulatedTimes]]


def training_table(steps: Steps) -> List[str]:
    """Return a line for each simulated step."""
    head = ("ranks", "dimensions", "step", "compute", "communication", "exposed", "efficiency")
    rows = [
        (
            str(step.size),
            str(place.topology),
            *map(duration, (step.step_s, step.compute_s, step.communication_s, step.exposed_s)),
            f"{100 * step.efficiency:.1f} %",
        )
        for place, step in steps
    ]
    return aligned([head, *rows])


def training_json(steps: Steps, work: Workload) -> Dict[str, Any]:
    """Return everything of the steps but the rows of the picture; times in seconds."""
    return {
        "model": work.model.name,
        "parameters": work.model.parameters,
        "overlap": work.overlap,
        "steps": [
            {
                "ranks": step.size,
                "dimensions": str(place.topology),
                "step_s": step.step_s,
                "compute_s": step.compute_s,
                "communication_s": step.communication_s,
                "exposed_s": step.exposed_s,
                "efficiency": step.efficiency,
                **_how(step.outcome),
                "buckets": [
                    {"bytes": bucket.nbytes, "algorithm": algorithm, "ready_s": bucket.ready_s, "ended_s": ended}
                    for bucket, algorithm, ended in zip(step.buckets, step.outcome.algorithms, step.outcome.ends[0])
                ],
            }
            for place, step in steps
        ],
    }


def allreduce_table(reductions: Reductions) -> List[str]:
    """Return a line for each simulated all-reduce; bus bandwidth is what nccl-tests call so."""
    head = ("ranks", "dimensions", "size", "algorithm", "time", "bandwidth", "bus bandwidth")
    rows = []
    for place, nbytes, outcome in reductions:
        size = place.machine.size
        speed = nbytes / outcome.seconds / 1e9 if outcome.seconds else 0.0
        bus = speed * 2 * (size - 1) / size
        told = (outcome.algorithms[0], duration(outcome.seconds), f"{speed:.3g} GB/s", f"{bus:.3g} GB/s")
        rows.append((str(size), str(place.topology), exact_bytes_text(nbytes), *told))
    return aligned([head, *rows])


def allreduce_json(reductions: Reductions) -> Dict[str, Any]:
    """Return the same as data; times in seconds."""
    return {
        "allreduces": [
            {
                "ranks": place.machine.size,
                "dimensions": str(place.topology),
                "bytes": nbytes,
                "algorithm": outcome.algorithms[0],
                "seconds": outcome.seconds,
                **_how(outcome),
            }
            for place, nbytes, outcome in reductions
        ]
    }


def _how(outcome: SimulatedTimes) -> Dict[str, Any]:
    return {"simulated_ranks": len(outcome.ends), "messages": outcome.messages, "exact": outcome.exact}


def notes(machine: Machine, outcomes: Sequence[SimulatedTimes]) -> List[str]:
    """Return what a reader of the table must know about how it came about."""
    said = []
    if machine.gpus is not None:
        said += ["arrays are on GPUs: each piece is copied to the host, and its result back"]
        said += ["not checked: this model of GPUs was never compared with a machine that has any"]
    if not all(outcome.exact for outcome in outcomes):
        said += ["small ones (recursive doubling) are estimated, 0.5 to 1.3 times as long: all ranks like the first"]
    return said


def assumed(assumptions: Sequence[Assumption]) -> List[str]:
    """Return a line for each assumption, with its standing."""
    return [f"{assumption.standing:<8} {assumption.text}" for assumption in assumptions]
