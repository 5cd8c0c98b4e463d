"""The program of a rank of ``ddl tune``: it measures; rank 0 prints a line per size and writes the table."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import ddl
from ddl import _core
from ddl.errors import ConfigError
from ddl.plan.ir import Collective
from ddl.text.units import bytes_text, duration
from ddl.tools.progress import Progress
from ddl.tuning.candidates import Candidate
from ddl.tuning.measure import table_file
from ddl.tuning.measure.other_work import OtherWork
from ddl.tuning.measure.sweep import measure
from ddl.tuning.measure.timed_arrays import ON_HOST
from ddl.tuning.measure.turns import RaceOutcome

_COLUMNS = "{:13}  {:>9}  {:>28}  {:>8}  {:>28}  {:>8}  {:>6}"


def main() -> int:
    """Measure; return the exit status."""
    task: Dict[str, Any] = json.loads(sys.argv[1])
    # Every candidate has connections of its own.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ddl.init()
    world = ddl.world()
    first = world.rank == 0
    path, problem = _target(task["output"]) if first else (Path(), "")
    device, without = _gpu() if task["device"] == "cuda" else (ON_HOST, "")
    problems = [text for text in world.allgather_object(problem or without) if text]
    if problems:
        if first:
            print(f"ddl tune: {problems[0]}", file=sys.stderr)
        return 2
    if first:
        print(_COLUMNS.format("collective", "size", "default", "", "fastest", "", "gain"), flush=True)
    collectives = [Collective[name.upper()] for name in task["collectives"]]
    said: List[str] = []
    progress = Progress(seconds=task["seconds"], after=5.0, name="ddl tune")

    def show(*row: Any) -> None:
        _print(*row)
        progress.step("measuring")

    shown = show if first else _nothing
    others = OtherWork()
    table = measure(world, collectives, task["sizes"], task["seconds"], shown, said.append, device)
    busy = others.told(world)
    if busy and not task["even_if_busy"]:
        if first:
            advice = "measure again when nothing else runs there, or say --even-if-busy"
            print(f"ddl tune: {busy}, so the table is not kept; {advice}", file=sys.stderr)
        return 1
    if first:
        print("".join(f"{text}\n" for text in [*said, *([f"note: {busy}"] if busy else [])]), end="")
        table_file.write(table, path)
        users = "jobs use it by DDL_TUNED=FILE" if task["output"] else "jobs on these hosts find it"
        print(f"written to {path} on {socket.gethostname()}; {users}")
    return 0


def _gpu() -> Tuple[int, str]:
    """Return the number of the GPU for this rank's arrays, and why there is none, or an empty text."""
    state = _core.survey_gpu_driver()
    if state.problem or state.count == 0:
        why = state.problem or "the driver sees no GPU"
        return ON_HOST, f"--device cuda: rank {ddl.rank()} on {socket.gethostname()}: {why}; see 'ddl doctor'"
    return ddl.local_rank() % state.count, ""


def _target(output: str) -> Tuple[Path, str]:
    """Return the file to write, and why it cannot be written: before seconds are spent on measuring."""
    try:
        path = Path(output) if output else table_file.place(ddl.world().job.cluster())
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK | os.X_OK) or path.is_dir():
            return path, f"{path} cannot be written on {socket.gethostname()}; give another --output"
        return path, ""
    except (OSError, ConfigError) as error:
        return Path(), f"the table cannot be written on {socket.gethostname()}: {error}; give another --output"


def _print(collective: Collective, nbytes: int, among: Sequence[Candidate], outcome: Optional[RaceOutcome]) -> None:
    name, size = collective.name.lower(), bytes_text(nbytes)
    if outcome is None:
        print(f"{name:13}  {size:>9}  and above: not measured, as it would take longer than --seconds", flush=True)
        return
    cells = [_text(among[outcome.default]), duration(outcome.default_seconds)]
    if outcome.chosen != outcome.default:
        gain = f"{outcome.default_seconds / outcome.seconds:.2f} x"
        cells += [_text(among[outcome.chosen]), duration(outcome.seconds), gain]
    else:
        cells += ["the default", "", ""]
    print(_COLUMNS.format(name, size, *cells).rstrip(), flush=True)


def _nothing(collective: Collective, nbytes: int, among: Sequence[Candidate], outcome: Optional[RaceOutcome]) -> None:
    """The other ranks say nothing."""


def _text(candidate: Candidate) -> str:
    """Return ``multiring 4 x 1 MiB``: pieces at once and their size, on the lane of large operations."""
    return (
        f"{candidate.algorithm} {candidate.in_flight} x {bytes_text(candidate.piece_bytes)}"
        if candidate.piece_bytes
        else candidate.algorithm
    )


if __name__ == "__main__":
    sys.exit(main())
