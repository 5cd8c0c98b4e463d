"""What judges DDL: it is timed against other libraries, against bounds and against its own predictions.

``python -m benchmarks WHAT``, in a checkout. A folder for each kind: ``collectives``, ``training``, ``waking`` and
``targets``; programs for single questions are in ``frameworks`` and ``predictions``. Nothing of it is installed. What
is measured, and how: docs/benchmarks.md. What came out: ``results``.
"""

import os
from pathlib import Path
from typing import Mapping

__all__ = ["ROOT", "search_path"]

ROOT = Path(__file__).resolve().parent.parent  #: the checkout


def search_path(environ: Mapping[str, str]) -> str:
    """Return the PYTHONPATH of an environment with this checkout before it: for programs that a benchmark starts."""
    return os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH", "")]))
