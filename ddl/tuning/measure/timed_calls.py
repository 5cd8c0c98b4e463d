"""The calls of a collective that are timed, and their results, which must have the same bits as the default's."""

from __future__ import annotations

from typing import Callable, Dict, Tuple

import numpy as np

from ddl.communicator import Communicator
from ddl.plan.ir import Collective
from ddl.reduce_op import Sum
from ddl.tuning.measure.scope import COLLECTIVES
from ddl.tuning.measure.timed_arrays import ON_HOST, timed_array

__all__ = ["COLLECTIVES", "TimedCalls", "bytes_for"]

_ITEM = 4  # float32
#: Calls a collective with (input, output).
_RUN: Dict[Collective, Callable[[Communicator, np.ndarray, np.ndarray], object]] = {
    Collective.ALLREDUCE: lambda world, x, out: world.allreduce_(x, op=Sum),
    Collective.REDUCESCATTER: lambda world, x, out: world.reducescatter(x, op=Sum, out=out),
    Collective.ALLGATHER: lambda world, x, out: world.allgather(x, out=out),
    Collective.ALLTOALL: lambda world, x, out: world.alltoall(x, out=out),
    Collective.BROADCAST: lambda world, x, out: world.broadcast_(x),
}
_IN_PLACE = (Collective.ALLREDUCE, Collective.BROADCAST)


def bytes_for(collective: Collective, ranks: int, nbytes: int) -> int:
    """Return the bytes of the larger buffer: at least ``nbytes``, whole elements, the same number for each rank."""
    unit = _ITEM if collective in _IN_PLACE else _ITEM * ranks
    return -(-nbytes // unit) * unit


class TimedCalls:
    """One collective on float32 arrays of one size; ``device``: on which GPU, or ``ON_HOST``."""

    def __init__(self, collective: Collective, rank: int, ranks: int, nbytes: int, device: int = ON_HOST) -> None:
        self.collective = collective
        self._call = _RUN[collective]
        self._rank = rank
        count = nbytes // _ITEM
        shares: Dict[Collective, Tuple[int, int]] = {
            Collective.REDUCESCATTER: (count, count // ranks),
            Collective.ALLGATHER: (count // ranks, count),
            Collective.ALLTOALL: (count, count),
        }
        given, returned = shares.get(collective, (count, 0))
        self._zeros = np.zeros(given, np.float32)
        self._input = timed_array(given, device)
        self._output = self._input if collective in _IN_PLACE else timed_array(returned, device)
        self._input.write(self._zeros)  # so that repeated sums do not overflow

    def run(self, world: Communicator) -> None:
        """Call the collective once. Collective, blocking."""
        self._call(world, self._input.passed(), self._output.passed())

    def result(self, world: Communicator) -> np.ndarray:
        """Return a copy of the result of one call on whole numbers that differ by rank. Sets the input to zero."""
        self._input.write((np.arange(self._zeros.size) + 3 * self._rank) % 8)
        self.run(world)
        values = self._output.read()
        self._input.write(self._zeros)
        return values
