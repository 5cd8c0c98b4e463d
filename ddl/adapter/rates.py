"""How fast a rank trains, how long it waits, and how late it is, over the last steps: for TensorBoard and its like."""

from __future__ import annotations

from typing import Dict

import ddl
from ddl import clock
from ddl._comm.own_record import waited_seconds

__all__ = ["StepRates"]


class StepRates:
    """Rates of this rank between two calls of ``read``. Used by one thread. Neither collective nor blocking.

    Raises ``InvalidState`` before ``init`` and after ``shutdown``, as ``read`` does.

    >>> rates = StepRates()
    >>> rates.note()   # after each step
    >>> rates.read()   # now and then
    {'steps_per_second': 11.3, 'waiting': 0.07, 'late_seconds': 0.0}
    """

    def __init__(self) -> None:
        ddl.world()  # raises before ``init``, when there is no record yet either
        self._begin(waited_seconds())

    def note(self, steps: int = 1) -> None:
        """Note that so many steps have ended."""
        self._steps += steps

    @property
    def steps(self) -> int:
        """Steps since the last ``read``."""
        return self._steps

    def read(self) -> Dict[str, float]:
        """Return the rates since the last ``read``, and begin anew.

        ``steps_per_second``; ``waiting``: the part of the time in which nothing moved in collectives of any
        communicator, 0 to 1; ``late_seconds``: how late this rank comes to each operation of all ranks now, on
        average, 0 if it is not called late (docs/metrics.md says when a rank is).
        """
        world, waited = ddl.world(), waited_seconds()
        seconds = max(clock.now() - self._since, 1e-9)
        # Communicators come and go, as when ranks do: one that was not there before has waited for nobody then.
        waiting = sum(now - self._waited.get(number, 0.0) for number, now in waited.items()) / seconds
        rates = {
            "steps_per_second": self._steps / seconds,
            "waiting": min(1.0, waiting),
            "late_seconds": float(world.metrics().late.get(world.rank, 0.0)),
        }
        self._begin(waited)
        return rates

    def _begin(self, waited: Dict[int, float]) -> None:
        self._steps, self._waited, self._since = 0, waited, clock.now()
