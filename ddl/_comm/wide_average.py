"""Averages of integers of less than 64 bits, which are added up as int64: 200 and 100 as uint8 would give 44 / 2.

The core refuses such a call (it knows elements of one type in a call), and then it is made once more from here, with
the numbers copied there and back. So other calls do not even ask. Of arrays on a GPU the core's refusal is what the
caller sees; ``ddl_torch`` widens them itself.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from ddl import _core
from ddl._comm.gpu_arrays import GpuArray, is_on_gpu
from ddl.plan.ir import Collective
from ddl.reduce_op import Average, ReduceOp

__all__ = ["WidePrepared", "call_widened", "is_narrow", "widened"]

_REDUCTIONS = (Collective.ALLREDUCE, Collective.REDUCE, Collective.REDUCESCATTER)
_WIDE = np.dtype(np.int64)


def _on_host(x: Any) -> Optional[np.ndarray]:
    """Return the memory of an array on the CPU of a type that numpy has; None for any other."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, GpuArray) or is_on_gpu(x):
        return None
    if getattr(x, "is_cpu", False):  # torch's, which numpy would take for memory that must not be written
        known = not x.is_floating_point()  # numpy lacks some of those
        return x.detach().numpy() if known else None
    try:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else None
    except (BufferError, RuntimeError, TypeError):  # of a type that numpy lacks, so these are no integers
        return None


def is_narrow(x: Any, op: ReduceOp) -> bool:
    """Return whether this reduction of ``x`` has to be made with wider numbers."""
    array = _on_host(x) if op == Average else None
    return array is not None and array.dtype.kind in "iu" and array.dtype.itemsize < _WIDE.itemsize


def _narrow(wide: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, wide.reshape(target.shape), casting="unsafe")  # an average lies between the numbers


def call_widened(core: _core.Communicator, collective: Collective, x: Any, out: Any, op: ReduceOp) -> None:
    """Make a blocking call whose arrays say all of the sizes, with wider numbers; ``out`` may be ``x``."""
    source, target = _on_host(x), _on_host(out)
    assert source is not None and target is not None
    wide = source.astype(_WIDE)
    result = wide if out is x else np.empty(target.shape, _WIDE)
    core.call(collective, wide, result, op, 0)
    _narrow(result, target)


def widened(call: _core.Call[Any]) -> Optional[Callable[[Any], Any]]:
    """Give a call wider arrays, if it needs them; return what makes its result when it has ended, else None."""
    collective = Collective(call.collective)
    if collective not in _REDUCTIONS or not is_narrow(call.input, ReduceOp(call.op)):
        return None
    source, target, in_place = _on_host(call.input), _on_host(call.output), call.output is call.input
    assert source is not None
    wide = source.astype(_WIDE)
    result = wide if in_place else None if target is None else np.empty(target.shape, _WIDE)
    call.input, call.output = wide, result

    def finish(value: Any) -> Any:
        if target is not None:
            assert result is not None
            _narrow(result, target)
        return value

    return finish


class WidePrepared:
    """A prepared average of integers; to a caller, a ``PreparedOperation``."""

    def __init__(self, core: _core.Communicator, x: Any, name: str) -> None:
        self.buffer = x
        array = _on_host(x)
        assert array is not None
        self._narrow = array
        self._wide = np.empty(array.shape, _WIDE)
        self._step = core.prepare(Collective.ALLREDUCE, self._wide, Average, name, None)

    def __call__(self) -> Any:
        """As ``PreparedOperation``'s."""
        np.copyto(self._wide, self._narrow)
        self._step()
        _narrow(self._wide, self._narrow)
        return self.buffer
