"""``hvd.elastic`` for Keras: a state of a model and its optimizer, and callbacks that keep it while ``fit`` runs.

States in general, ``run`` and ``fenced`` are in ddl/adapter/. Values are numpy arrays, for every backend.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import keras
import numpy as np

from ddl.adapter.elastic import Arrays, Handler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced
from ddl_tensorflow import _keras_backend as backend
from ddl_tensorflow._public import public_names
from ddl_tensorflow.elastic import TensorFlowKerasState

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "KerasState", "ObjectState", "State", "fenced", "run"]
__all__ += ["CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"]


class KerasState(TensorFlowKerasState):
    """``TensorFlowKerasState``, of ``ddl_tensorflow.elastic``, for every backend of Keras.

    >>> state = ddl.elastic.KerasState(model, epoch=0, batch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        return _OF_KERAS if hasattr(value, "variables") else None


def _read(value: Any) -> List[np.ndarray[Any, Any]]:
    backend.publish(value)
    return [backend.read(variable) for variable in value.variables]


def _write(value: Any, arrays: List[np.ndarray[Any, Any]]) -> None:
    backend.publish(value)  # else what fit keeps elsewhere would come back
    for variable, array in zip(value.variables, arrays):
        backend.write(variable, array)


_OF_KERAS = Arrays(_read, _write)


class CommitStateCallback(keras.callbacks.Callback):
    """Commit ``state`` after every ``batches_per_commit`` batches and at the end of each epoch.

    Put it after the two that update the state: then what is restored goes on with the batch that comes next.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.batches_remaining = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keep ``state.batch`` the number of batches that the epoch has had; 0 at its end.

    An epoch that was cut goes on with ``steps_per_epoch=steps - state.batch``, and counts from there. (Horovod keeps
    the number of the last batch, which is then trained twice.)
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before = 0

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._before = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.batch = self._before + batch + 1

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.batch = self._before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keep ``state.epoch`` the number of epochs that have ended, over all calls of ``fit``.

    Whether ``fit`` goes on with ``initial_epoch=state.epoch`` or counts from 0 with ``epochs - state.epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._before: Optional[int] = None

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self._before = None

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self._before is None:
            self._before = self.state.epoch - epoch

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        assert self._before is not None
        self.state.epoch = self._before + epoch + 1


__dir__ = public_names(globals())
