"""The program of a rank of ``ddl bench``: it times all sizes; rank 0 prints the table."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, Dict

import numpy as np

import ddl
from ddl.text.units import exact_bytes_text
from ddl.tools.bench.figures import Figures, bus_factor, merge, quantile
from ddl.tools.bench.library import Ddl
from ddl.tools.bench.loop import measure
from ddl.tools.bench.report import details
from ddl.tools.bench.values import DTYPES, CollectiveCall, fitting
from ddl.tools.doctor.phrases import counted
from ddl.tools.files import write_json
from ddl.tools.progress import Progress

TRIAL_CALLS = 3  #: calls that tell how long a call takes
CALLS = (5, 100_000)  #: the least and the greatest number of timed calls


def main() -> int:
    """Measure; return the exit status."""
    task: Dict[str, Any] = json.loads(sys.argv[1])
    library = Ddl()
    first = library.rank == 0
    figures: Dict[int, Figures] = {}
    progress = Progress(after=5.0, name="ddl bench")
    unit = DTYPES[task["dtype"]] * (library.size if task["collective"] not in ("allreduce", "broadcast") else 1)
    sizes = fitting(task["sizes"], unit)
    for nbytes in sizes:
        if first:
            progress.step(exact_bytes_text(nbytes), len(sizes))
        work = CollectiveCall(task["collective"], task["dtype"], nbytes // DTYPES[task["dtype"]], library.size)
        timed = measure(library, work, _calls(library, work, task["seconds"]), warmup=TRIAL_CALLS)
        ranks = [{"sizes": {nbytes: result}} for result in ddl.allgather_object(timed)]
        factor = bus_factor(work.collective, library.size)
        figures[nbytes] = Figures.of([merge(0, ranks)[nbytes]], nbytes, factor)
    progress.close()
    if first:
        print(f"{task['collective']} of {task['dtype']}, {library.size} ranks on {counted(ddl.cross_size(), 'host')}\n")
        print(details(figures))
        if task["json"]:
            of_size = {str(nbytes): dataclasses.asdict(figure) for nbytes, figure in figures.items()}
            write_json(task["json"], {**task, "ranks": library.size, "version": library.version, "figures": of_size})
    library.finish()
    return 0


def _calls(library: Ddl, work: CollectiveCall, seconds: float) -> int:
    """Return how many calls take about ``seconds``; the same number on all ranks."""
    trial = sorted(measure(library, work, TRIAL_CALLS, warmup=1)["seconds"])
    median = float(ddl.allreduce(np.array([quantile(trial, 0.5)]), op=ddl.Max)[0])
    return int(min(max(seconds / median, CALLS[0]), CALLS[1]))


if __name__ == "__main__":
    sys.exit(main())
