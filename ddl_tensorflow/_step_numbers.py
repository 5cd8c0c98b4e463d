"""The step to which gradients belong: ranks compare it with each bucket, so that they notice a step that one left out.

A script may catch an exception on one rank after some buckets of a step were sent, or after averages have come and
before variables are changed, and go on with the next step. Without numbers, the next buckets of that rank would be
averaged with those of another step, and weights would differ from then on, without an error.

An optimizer of Keras has the number: its iterations. For tapes, and for optimizers of TF1, runs of the op are counted.
Ranks may begin with different numbers, so they compare what has been added since the job began. They compare it modulo
``CYCLE``: ranks remember what they have submitted before by its text, which must not be a new one at each step.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Dict, Hashable, Optional

import ddl

__all__ = ["CYCLE", "StepNumbers", "begin_anew", "counted", "step_text"]

CYCLE = 16

_lock = threading.Lock()
_counts: Dict[Hashable, int] = {}
_world: Optional[weakref.ref[Any]] = None  #: the communicator of the job, which this does not keep alive
_era = 0  #: of the job, and of the last ``join`` in it


def begin_anew() -> None:
    """Let all numbers begin with 0 again: ranks have come together after different numbers of steps."""
    global _era
    with _lock:
        _era += 1
        _counts.clear()


def _now() -> int:
    """Return the number of the era; a new job begins a new one. The caller holds the lock."""
    global _world, _era
    world = ddl.world()
    if _world is None or world is not _world():
        _world = weakref.ref(world)
        _era += 1
        _counts.clear()
    return _era


def counted(name: Hashable) -> int:
    """Return how often this has been called for ``name`` before, in this era."""
    with _lock:
        _now()
        number = _counts.get(name, 0)
        _counts[name] = number + 1
    return number


class StepNumbers:
    """The numbers of one optimizer's steps, which begin anywhere, as numbers that begin with 0 in each era."""

    def __init__(self) -> None:
        self._era = -1
        self._first: Dict[Optional[str], int] = {}

    def since_start(self, name: Optional[str], number: int) -> int:
        """Return what has been added to the number that steps called ``name`` began with."""
        with _lock:
            era = _now()
            if self._era != era:
                self._era, self._first = era, {}
            return number - self._first.setdefault(name, number)


def step_text(number: int) -> str:
    """Return a step's number as ranks compare it, and as an error shows it."""
    return f", step {number % CYCLE} (modulo {CYCLE})"
