"""Target f: one of two rails is cut in the middle of an all-reduce, which finishes with the same bits."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List

from benchmarks.collectives.contestants import on_cluster
from benchmarks.collectives.launch import written_by
from benchmarks.targets.rows import Row
from ddl.errors import Error
from ddl.text.units import duration, exact_bytes_text
from ddl.tools.progress import Progress
from lab import Cluster, Shape

__all__ = ["measure", "row"]

SHAPE = Shape(2, rails=(10**9, 10**9))
PATIENCE = 120.0  #: seconds for a job that takes ten


def measure(nbytes: int, rounds: int) -> List[Dict[str, Any]]:
    """Cut a rail once in each of ``rounds`` jobs; return what was seen of each, and raise ``Error`` if one failed.

    ``whole``: median seconds of an operation before; ``cut``: of the one that the cut fell into; ``same``: its bits
    are those of the others, on all ranks; ``layout``: what rank 0 said of its job.
    """
    cuts = []
    progress = Progress(rounds)
    for number in range(rounds):
        progress.step(f"round {number + 1} of {rounds}: ddl, a rail cut")
        with Cluster(SHAPE) as cluster, tempfile.TemporaryDirectory(prefix="ddl-bench-") as directory:
            cuts.append(_cut_once(cluster, nbytes, Path(directory)))
    progress.close()
    return cuts


def _cut_once(cluster: Cluster, nbytes: int, output: Path) -> Dict[str, Any]:
    program = [sys.executable, "-m", "benchmarks.targets.cut_rank", str(output), str(nbytes)]
    command = on_cluster(cluster, program, {**os.environ, "DDL_TIMEOUT": "60"})
    pipe = subprocess.PIPE
    with subprocess.Popen(command.line, env=command.environ, stdout=pipe, stderr=pipe, text=True) as job:
        try:
            assert job.stdout is not None
            line = job.stdout.readline()  # ends with the job, whose waits have deadlines, if that fails
            if line:
                time.sleep(float(line) / 3)
                cluster.cut("node2", 1)
            moment = time.monotonic()
            _, said = job.communicate(timeout=PATIENCE)
        finally:
            job.kill()
    if job.returncode != 0 or not line:
        raise Error(f"a rail was cut, and the job ended with status {job.returncode}:\n{said.strip()[-4000:]}")
    ranks = written_by(output, 2)
    begin, end = (min(rank["cut"][0] for rank in ranks), max(rank["cut"][1] for rank in ranks))
    if not begin < moment < end:
        raise Error(f"the cut came {moment - begin:.3f} s after an operation of {end - begin:.3f} s began: try again")
    bits = {text for rank in ranks for text in rank["bits"]}
    whole = statistics.median(max(pair) for pair in zip(*(rank["whole"] for rank in ranks)))
    return {"whole": whole, "cut": end - begin, "same": len(bits) == 1, "layout": ranks[0]["layout"]}


def row(nbytes: int, cuts: List[Dict[str, Any]]) -> Row:
    """Judge: all must have finished with the same bits; how much longer they took is told."""
    cut, whole = (statistics.median(entry[name] for entry in cuts) for name in ("cut", "whole"))
    longest = max(entry["cut"] - entry["whole"] for entry in cuts)
    note = (
        f"{duration(whole, 3)} without a cut, so {duration(cut - whole, 3)} longer (at most {duration(longest, 3)}); "
    )
    note += f"{len(cuts)} cuts"
    what = f"2 hosts, two rails of 1 Gb/s, one cut within the operation, {exact_bytes_text(nbytes)}"
    same = sum(entry["same"] for entry in cuts) / len(cuts)
    return Row("f", what, same, "runs that end with the same bits", 1, at_most=False, ours=cut, note=note)
