"""``KerasEstimator``: trains a Keras model on a Spark DataFrame, on ranks that are tasks of Spark.

>>> from ddl_tensorflow.keras.spark import KerasEstimator
>>> estimator = KerasEstimator(model=model, optimizer=keras.optimizers.SGD(0.1),
...     loss="sparse_categorical_crossentropy", metrics=["accuracy"], feature_cols=["pixels"], label_cols=["digit"],
...     batch_size=32, epochs=5, num_proc=2, work_dir="/mnt/shared")
>>> fitted = estimator.fit(df)
>>> fitted.transform(df).select("digit__output")
"""

from __future__ import annotations

import functools
import pickle
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

import keras
import numpy as np

import ddl_tensorflow.keras as ddl
from ddl.spark.estimator import FittedModel, FrameEstimator, FrameTraining, Trained

__all__ = ["KerasEstimator", "KerasModel"]


class KerasEstimator(FrameEstimator):
    """Trains a Keras model on a DataFrame: ``fit(df)`` returns a ``KerasModel``. Keras' backend has to be TensorFlow.

    ``optimizer``, ``loss`` and ``metrics`` are what ``model.compile`` takes. ``custom_objects``: what these and the
    model are made of besides Keras' own, by name. A step is that of ``DistributedOptimizer``: the ranks' mean
    gradients. The model that is passed stays as it is.

    What the other parameters mean: ``ddl.spark.estimator.FrameEstimator``.
    """

    def __init__(
        self, *, metrics: Sequence[Any] = (), custom_objects: Optional[Mapping[str, Any]] = None, **parameters: Any
    ) -> None:
        super().__init__(**parameters)
        self.metrics, self.custom_objects = list(metrics), dict(custom_objects or {})

    def _training(self) -> Tuple[Callable[..., Optional[Trained]], Tuple[Any, ...]]:
        settings = (_described(self.optimizer), _described(self.loss), _described(self.metrics))
        return _train, (_Sent(pickle.dumps(self.model), self.custom_objects), *settings)

    def _fitted(self, trained: Trained) -> KerasModel:
        model = _Sent(pickle.dumps(self.model), self.custom_objects).model
        model.set_weights(trained.state)
        fitted = KerasModel(model, trained, self.plan)
        fitted.custom_objects = self.custom_objects
        return fitted


class KerasModel(FittedModel):
    """A Keras model that ``KerasEstimator`` has trained, as a Transformer; see ``FittedModel``."""

    custom_objects: Mapping[str, Any] = {}

    def _predict(self) -> Tuple[Callable[..., List[np.ndarray]], Any]:
        return _outputs, _Sent(pickle.dumps(self.model), self.custom_objects)


class _Sent:
    """A model on its way to a task, where what it is made of has to be known before it is unpickled."""

    def __init__(self, pickled: bytes, custom_objects: Mapping[str, Any]) -> None:
        self._pickled, self._custom_objects = pickled, custom_objects

    @functools.cached_property
    def model(self) -> Any:
        with self.names():
            return pickle.loads(self._pickled)

    def names(self) -> Any:
        """Return a context in which Keras finds the custom objects."""
        return keras.saving.custom_object_scope(dict(self._custom_objects))


def _described(setting: Any) -> Any:
    """Return what ``compile`` takes as what can be pickled: Keras' own objects as dictionaries."""
    if isinstance(setting, (list, tuple)):
        return [_described(part) for part in setting]
    objects = (keras.optimizers.Optimizer, keras.losses.Loss, keras.metrics.Metric)
    return keras.saving.serialize_keras_object(setting) if isinstance(setting, objects) else setting


def _restored(setting: Any) -> Any:
    """Undo ``_described``."""
    if isinstance(setting, list):
        return [_restored(part) for part in setting]
    return keras.saving.deserialize_keras_object(setting) if isinstance(setting, dict) else setting


def _train(training: FrameTraining, sent: _Sent, optimizer: Any, loss: Any, metrics: Any) -> Optional[Trained]:
    """Train as a rank."""
    keras.utils.set_random_seed(training.seed + ddl.rank())  # dropout, and the order of this rank's rows
    model = sent.model  # all ranks have unpickled the same bytes, so nothing is broadcast
    with sent.names():
        averaging = ddl.DistributedOptimizer(keras.optimizers.get(_restored(optimizer)))
        model.compile(averaging, _restored(loss), metrics=_restored(metrics))
    shares = training.rows()
    train, *rest = [(_one_or_list(rows.features), _one_or_list(rows.labels)) for rows in shares]
    history = model.fit(
        *(*train, training.batch_size, training.epochs),
        verbose=2 if training.verbose and ddl.rank() == 0 else 0,
        callbacks=[ddl.callbacks.MetricAverageCallback()],
        validation_data=rest[0] if rest else None,
        shuffle=training.shuffle,
    )
    if ddl.rank() != 0:
        return None
    first = next(shares[0].batches(1))
    shapes = [output.shape[1:] for output in _outputs(sent, first.features)]
    numbers = {name: [float(value) for value in values] for name, values in history.history.items()}
    return Trained(model.get_weights(), numbers, shapes)


def _one_or_list(arrays: Sequence[np.ndarray]) -> Any:
    return arrays[0] if len(arrays) == 1 else list(arrays)


def _outputs(sent: _Sent, features: Sequence[np.ndarray]) -> List[np.ndarray]:
    outputs = sent.model.predict_on_batch(_one_or_list(features))
    return [np.asarray(output) for output in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]
