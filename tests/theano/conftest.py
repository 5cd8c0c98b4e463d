"""Theano for its tests: compiled code is kept in build/, in a folder for each worker, so that none waits for another.

Each rank of a test has a folder of its own there (tests/ranks.py), as ddlrun gives it one. Theano imports what Python
and numpy warn of by now.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

COMPILED = Path(__file__).resolve().parents[2] / "build" / "theano" / os.environ.get("PYTEST_XDIST_WORKER", "main")

os.environ["THEANO_FLAGS"] = (
    f"floatX=float32,device=cpu,blas.ldflags=,gcc.cxxflags=-O0,compile.wait=1,base_compiledir={COMPILED}"
)

with warnings.catch_warnings(), contextlib.suppress(ModuleNotFoundError):  # without it, tests skip themselves
    warnings.simplefilter("ignore")
    import theano.tensor  # noqa: F401
