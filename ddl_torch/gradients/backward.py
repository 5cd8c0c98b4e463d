"""Finds out when backward passes begin and end, from the hooks of parameters.

PyTorch calls back at the end of a *graph task*, one run of its engine. Two things have to be added to that:

* A backward pass may run others inside (checkpoints with ``use_reentrant=True``). Only the outermost one counts, and
  the engine does not say which that is; the stack of Python does.
* An exception ends a pass without a callback. The next pass finds that the one before is still open.

One pass may bring gradients to several reducers, in a different order on each rank. At its end the reducers run in the
order in which they were made, which is the same everywhere, because each then waits for the other ranks.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from types import FrameType
from typing import Dict, List, Optional, Protocol, Tuple

import torch

import ddl
from ddl.text.tracebacks import brief

__all__ = ["BackwardListener", "BackwardPasses"]

_OUTSIDE = -1  # PyTorch's number of a graph task where none runs
_STARTS = (torch.autograd.backward.__code__, torch.autograd.grad.__code__)
_numbers = itertools.count()
#: By graph task: the passes that end with it, and the number that each had when it began.
_ending: Dict[int, List[Tuple[BackwardPasses, int]]] = {}


class BackwardListener(Protocol):
    """What is told of backward passes, by the thread that runs them."""

    def backward_began(self) -> None:
        """A pass has brought its first gradient."""

    def backward_ended(self) -> None:
        """All gradients of the pass are there."""

    def backward_failed(self) -> None:
        """The pass before the one that begins now was left by an exception."""

    def is_complete(self) -> bool:
        """Return whether no gradient is missing that the pass could still bring."""


class BackwardPasses:
    """Follows the backward passes that reach one reducer, its ``listener``, which it does not keep alive."""

    def __init__(self, listener: BackwardListener) -> None:
        self._listener = weakref.ref(listener)
        self._order = next(_numbers)
        self._task = _OUTSIDE  # the graph task of the last gradient
        self._outermost = _OUTSIDE  # the graph task whose end is awaited
        self._pass = 0  # counts passes, so that a late callback of an old one does nothing
        self.running = False
        self.nested = False  #: this pass has brought gradients from a pass inside it, so each may come again

    def gradient_came(self) -> None:
        """Called for each gradient, before anything else is done with it."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._enter(task)
            self._task = task

    def _enter(self, task: int) -> None:
        if task == self._outermost and self.running:
            return  # back from a pass inside
        inside = _depth() > 1
        if self.running and not inside and self._outermost != _OUTSIDE:
            self._fail()
        if not self.running:
            self._begin()
        if inside:
            self.nested = True
            if self._outermost != _OUTSIDE:
                return
        else:
            self._outermost = task
        if task not in _ending:
            _forget_failed()
            _ending[task] = []
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _end(task))
        _ending[task].append((self, self._pass))

    def _begin(self) -> None:
        self.running, self.nested, self._outermost = True, False, _OUTSIDE
        self._pass += 1
        listener = self._listener()
        if listener is not None:
            listener.backward_began()

    def _fail(self) -> None:
        self.stop()
        listener = self._listener()
        if listener is not None:
            listener.backward_failed()

    def stop(self) -> None:
        """Wait for the end of the pass no longer."""
        self.running, self._task, self._outermost = False, _OUTSIDE, _OUTSIDE

    def end(self, number: int, task: int) -> None:
        """End pass ``number`` with graph task ``task``, unless it has ended or an outer task is known by now."""
        listener = self._listener()
        if listener is None or not self.running or number != self._pass:
            return
        # The end of an inner pass is the end of all only if nothing is missing: the outer one may bring nothing.
        if self._outermost == task or (self._outermost == _OUTSIDE and listener.is_complete()):
            self.stop()
            listener.backward_ended()


def _end(task: int) -> None:
    """Serve every reducer, also where one before raises: other ranks may be fine, and wait for this one."""
    errors: List[Exception] = []
    for passes, number in sorted(_ending.pop(task, []), key=lambda pair: pair[0]._order):
        try:
            passes.end(number, task)
        except Exception as error:
            errors.append(error)
    if not errors:
        return
    try:
        raise errors[0]
    except ddl.Error as error:
        brief(error)
        raise


def _forget_failed() -> None:
    """Drop graph tasks that an exception has ended: nobody waits for them any more."""
    for task, pairs in list(_ending.items()):
        if not any(passes.running and number == passes._pass for passes, number in pairs):
            del _ending[task]


def _depth() -> int:
    """Return how many backward passes run inside one another in this thread."""
    depth = 0
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        depth += frame.f_code in _STARTS
        frame = frame.f_back
    return depth
