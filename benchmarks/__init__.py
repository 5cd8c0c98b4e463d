"""Compares DDL with other libraries, with the limits of the machine and with its own predictions.

Start it in a checkout: ``python -m benchmarks WHAT``. There is a folder for each kind: ``collectives``, ``training``,
``waking`` and ``targets``. Programs that answer a single question are in ``frameworks`` and ``predictions``. The tables
are in ``results``. Nothing here is installed. docs/benchmarks.md says what is measured, and how.
"""

import os
from pathlib import Path
from typing import Mapping

__all__ = ["ROOT", "search_path"]

ROOT = Path(__file__).resolve().parent.parent  #: the checkout


def search_path(environ: Mapping[str, str]) -> str:
    """Return the PYTHONPATH of an environment with this checkout before it: for programs that a benchmark starts."""
    return os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH", "")]))
