"""Runs a module as a job of ``ddlrun``, and returns what one of its ranks printed as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from benchmarks import ROOT, search_path
from ddl.errors import Error

__all__ = ["run_job"]

_SHOWN = 2000  # characters of what a job that fails has printed on stderr


def run_job(
    size: int,
    program: Sequence[str],
    *,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = {},  # noqa: B006  (read only)
    folder: Path = ROOT,
    checkout: Optional[Path] = None,
    timeout: float = 600.0,
) -> Any:
    """Run ``python -m *program`` as ``size`` ranks of one thread each, and return the JSON of its first such line.

    options: more of ddlrun's. folder: where it runs. checkout: whose DDL; without, that of this benchmark. Raises
    ``Error`` if the job fails, and ``subprocess.TimeoutExpired`` after ``timeout`` seconds.
    """
    line = [sys.executable, "-m", "ddl.launch", "-np", str(size), "--no-prefix", "--quiet", *options]
    path = search_path(os.environ) if checkout is None else str(checkout.resolve())
    ended = subprocess.run(
        [*line, sys.executable, "-m", *program],
        env={**os.environ, **variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    answers = [text for text in ended.stdout.splitlines() if text.startswith("{")]
    if ended.returncode != 0 or not answers:
        raise Error(f"the job {' '.join(program)} ended with {ended.returncode}: {ended.stderr.strip()[-_SHOWN:]}")
    return json.loads(answers[0])
