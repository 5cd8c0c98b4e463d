"""Names the library that jaxlib loads as its MPI (csrc/mpi). Run before JAX is imported: jaxlib loads it at once.

Loading it does nothing else: it joins the job when JAX asks for collectives. It imports nothing of DDL's, as
startup/sitecustomize.py runs it by its path.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
from pathlib import Path

__all__ = ["is_loaded"]

_VARIABLE = "MPITRAMPOLINE_LIB"


def _path() -> str:
    """Return the library's path; empty if it was not built."""
    spec = importlib.machinery.PathFinder.find_spec("_mpi", [str(Path(__file__).resolve().parent)])
    return "" if spec is None or spec.origin is None else spec.origin


def is_loaded() -> bool:
    """Return whether jaxlib has loaded it."""
    if not _path():
        return False
    try:
        ctypes.CDLL(_path(), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return True


if _path():
    os.environ.setdefault(_VARIABLE, _path())
