"""``RatesCallback``: steps per second, waiting and lateness of a rank among the numbers that Keras logs."""

from __future__ import annotations

from typing import Any, Dict

import keras

import ddl
from ddl.adapter.rates import StepRates

__all__ = ["RatesCallback"]


class RatesCallback(keras.callbacks.Callback):
    """Add how fast this rank trains to the logs of ``fit``, where ``keras.callbacks.TensorBoard`` finds it.

    At the end of each epoch ``logs`` gets the means of the epoch, its validation included: ``ddl_steps_per_second``,
    ``ddl_waiting`` (the part of the time in which nothing moved in collectives, 0 to 1) and ``ddl_late_seconds`` (how
    late this rank comes to each of them, 0 if it is not late). They are in the history, too. At the end of each batch
    ``logs`` gets those of the last ``every`` batches, as soon as there are so many in the epoch.

    Put it before callbacks that are to see the numbers, and after ``MetricAverageCallback``, which would average them
    over the ranks. TensorBoard shows them as ``epoch_ddl_waiting``, with ``update_freq="batch"`` also as
    ``batch_ddl_waiting``. Not collective. Raises ``InvalidArgument`` if ``every`` is no number from 1 on.

    >>> callbacks = [ddl.callbacks.RatesCallback(), keras.callbacks.TensorBoard(f"logs/rank{ddl.rank()}")]
    """

    def __init__(self, every: int = 10) -> None:
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ddl.InvalidArgument(f"RatesCallback: every={every!r} is not a number of batches from 1 on")
        self._every = every

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._batches = StepRates(), StepRates()
        self._last: Dict[str, float] = {}
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        steps, self._batch = batch - self._batch, batch  # more than one with ``steps_per_execution``
        self._epoch.note(steps)
        self._batches.note(steps)
        if self._batches.steps >= self._every:
            self._last = _named(self._batches.read())
        if isinstance(logs, dict):
            logs.update(self._last)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if isinstance(logs, dict):
            logs.update(_named(self._epoch.read()))


def _named(rates: Dict[str, float]) -> Dict[str, float]:
    return {f"ddl_{name}": value for name, value in rates.items()}
