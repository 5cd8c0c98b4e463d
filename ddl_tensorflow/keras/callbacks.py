"""Callbacks for ``fit``: the same beginning on all ranks, averaged metrics, learning rates, checkpoints, rates.

They work with every backend of Keras 3. The first two are collective: all ranks have them, in the same order.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import keras
import numpy as np

import ddl
from ddl.adapter.metrics import average_metrics
from ddl_tensorflow._public import public_names
from ddl_tensorflow.keras._broadcast import BroadcastGlobalVariablesCallback, WeightAverageCallback
from ddl_tensorflow.keras._learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from ddl_tensorflow.keras._rates import RatesCallback
from ddl_tensorflow.keras.elastic import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback

__all__ = ["BestModelCheckpoint", "BroadcastGlobalVariablesCallback", "MetricAverageCallback", "WeightAverageCallback"]
__all__ += ["LearningRateScheduleCallback", "LearningRateWarmupCallback", "RatesCallback"]
__all__ += ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


class MetricAverageCallback(keras.callbacks.Callback):
    """Replace metrics by their averages over the ranks at the end of each epoch: of training and of validation.

    Callbacks that come after it in the list see the averages, the same bits on every rank, and so does the history:
    ``EarlyStopping`` stops all ranks after the same epoch, ``ReduceLROnPlateau`` lowers all rates. So it comes first;
    if one before it has stopped some ranks only, all ranks are told. Each rank counts equally, as in Horovod: with
    parts of unequal size this is not the metric of the whole. ``evaluate`` by itself returns a rank's own metrics,
    whatever callbacks do: ``average_metrics(model.evaluate(x, y, return_dict=True), weight=len(x))`` is of the whole.

    ``device`` is Horovod's, and not used. Collective, blocking; on every rank. Raises ``InvalidArgument``, on all
    ranks, if ranks have different metrics.

    >>> callbacks = [ddl.callbacks.MetricAverageCallback(), keras.callbacks.EarlyStopping()]
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        logs = {} if logs is None else logs
        stops = ddl.world().allgather_object(bool(self.model.stop_training))
        if any(stops) and not all(stops):
            raise ddl.InvalidArgument(
                f"{ddl.world().who} MetricAverageCallback: training was stopped on ranks "
                f"{[rank for rank, stop in enumerate(stops) if stop]} only, by a callback that saw their own metrics; "
                "put MetricAverageCallback before it"
            )
        self._average(logs)

    def _average(self, logs: Dict[str, Any]) -> None:
        numbers: Dict[str, Any] = {}
        for name, value in logs.items():
            if np.ndim(value) == 0:
                numbers[name] = value
            else:
                numbers.update({f"{name}[{i}]": element for i, element in enumerate(np.ravel(value))})
        means = average_metrics(numbers)
        for name, value in logs.items():
            if np.ndim(value) == 0:
                logs[name] = means[name]
            else:
                logs[name] = np.reshape([means[f"{name}[{i}]"] for i in range(np.size(value))], np.shape(value))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Save the best model so far, on rank 0 alone: ``keras.callbacks.ModelCheckpoint(save_best_only=True)``.

    filepath: where to, ``.keras`` (or ``.weights.h5`` with ``save_weights_only``); as in Horovod it may also be set
    later, as an attribute. Put it after ``MetricAverageCallback``: else it judges by rank 0's metrics. Not collective;
    other ranks go on meanwhile. The file holds the optimizer as Keras' own class: it loads where there is no DDL, and
    ``ddl_tensorflow.keras.load_model`` makes it a distributed one again.

    >>> ddl.callbacks.BestModelCheckpoint(monitor="val_loss", filepath="best.keras")
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        default = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(
            filepath=default if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if ddl.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if ddl.rank() == 0:
            super().on_epoch_end(epoch, logs)


__dir__ = public_names(globals())
