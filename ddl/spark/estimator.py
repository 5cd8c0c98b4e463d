"""What the estimators of ``ddl_torch.spark`` and ``ddl_tensorflow.keras.spark`` share: they fit on a DataFrame.

``fit`` writes the DataFrame as Parquet, and calls the framework's training on ranks by ``ddl.spark.run``; each rank
reads its share (ddl/spark/shares.py). The result is a Transformer whose ``transform`` adds the model's outputs. The
names of parameters are those of Horovod's estimators.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import pyarrow
from pyspark.ml import Estimator, Model
from pyspark.sql import functions
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

import ddl
from ddl.errors import InvalidArgument
from ddl.spark.runner import run
from ddl.spark.shares import as_arrays, numbers, read_share, written

__all__ = ["FittedModel", "FrameEstimator", "RowShare", "Shapes", "Trained", "FrameTraining"]

Shapes = Optional[Sequence[Sequence[int]]]  #: of the model's inputs; -1 is the rows
_INPUT = "__ddl_"  # before the names of columns that only the model sees


@dataclasses.dataclass(frozen=True)
class RowShare:
    """Rows of a rank: an array for each input of the model, and for each label."""

    features: List[np.ndarray]
    labels: List[np.ndarray]

    def __len__(self) -> int:
        return len(self.labels[0])

    def batches(self, size: int, order: Optional[np.ndarray] = None) -> Iterator[RowShare]:
        """Yield batches of so many rows in this order; the last one may be smaller."""
        order = np.arange(len(self)) if order is None else order
        for begin in range(0, len(order), size):
            rows = order[begin : begin + size]
            yield RowShare([array[rows] for array in self.features], [array[rows] for array in self.labels])


@dataclasses.dataclass(frozen=True)
class FrameTraining:
    """What each rank knows of the training, besides the model."""

    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    input_shapes: Shapes
    batch_size: int
    epochs: int
    shuffle: bool
    seed: int
    verbose: int
    places: Sequence[str]  #: of the rows to train on, and of those to validate with if there are any

    def rows(self) -> List[RowShare]:
        """Return this rank's share of the rows to train on, and of those to validate with. Collective, blocking."""
        return [self._share(place, what) for place, what in zip(self.places, ("training rows", "validation rows"))]

    def _share(self, place: str, what: str) -> RowShare:
        arrays = read_share(place, [*self.feature_cols, *self.label_cols], what)
        features = shaped({name: arrays[name] for name in self.feature_cols}, self.input_shapes)
        return RowShare(features, [arrays[name] for name in self.label_cols])

    def order(self, rows: int, epoch: int) -> np.ndarray:
        """Return the order of a rank's rows in an epoch."""
        generator = np.random.default_rng([self.seed, epoch, ddl.rank()])
        return generator.permutation(rows) if self.shuffle else np.arange(rows)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What rank 0 gives back: the model's new state, what the epochs came to, the shapes of outputs for one row."""

    state: Any
    history: Dict[str, List[float]]
    output_shapes: List[Tuple[int, ...]]


class FrameEstimator(Estimator):
    """Trains a model on the rows of a DataFrame; an adapter says how, by ``_training`` and ``_fitted``.

    model, optimizer, loss: the framework's; loss may be a list with one for each label. feature_cols: columns that are
    the inputs of the model, in order: numbers, lists or vectors. label_cols: columns for its outputs. input_shapes: a
    shape for each input, with -1 for the rows. batch_size: rows of a rank in a step. num_proc: ranks (default
    ``spark.default.parallelism``). work_dir: a directory (path or URI) that the driver's and all executors' hosts
    share; the rows are there as Parquet while ``fit`` runs. validation: a share of the rows, as 0.1, or the name of a
    column that is true for them. shuffle: each rank has its rows in another order in each epoch. env, start_timeout:
    as those of ``ddl.spark.run``. Raises ``InvalidArgument`` for what makes no sense.
    """

    def __init__(
        self,
        *,
        model: Any,
        optimizer: Any,
        loss: Any,
        feature_cols: Sequence[str],
        label_cols: Sequence[str],
        work_dir: str,
        num_proc: Optional[int] = None,
        batch_size: int = 32,
        epochs: int = 1,
        validation: Union[float, str, None] = None,
        input_shapes: Shapes = None,
        shuffle: bool = True,
        random_seed: int = 0,
        verbose: int = 1,
        env: Optional[Mapping[str, str]] = None,
        start_timeout: Optional[float] = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for columns, what in ((feature_cols, "feature_cols"), (label_cols, "label_cols")):
            if isinstance(columns, str) or not columns:
                raise InvalidArgument(f"{name}: {what}={columns!r}; name the columns in a list")
        if input_shapes is not None and len(input_shapes) != len(feature_cols):
            raise InvalidArgument(f"{name}: {len(input_shapes)} input_shapes for {len(feature_cols)} feature_cols")
        if batch_size < 1 or epochs < 1:
            raise InvalidArgument(f"{name}: batch_size={batch_size}, epochs={epochs}; both are at least 1")
        if validation is not None and not isinstance(validation, str) and not 0 < validation < 1:
            raise InvalidArgument(f"{name}: validation={validation!r}; a share between 0 and 1, or a column's name")
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.work_dir, self.validation, self.num_proc = work_dir, validation, num_proc
        self._run: Dict[str, Any] = {"env": env, "start_timeout": start_timeout, "verbose": verbose}
        self.plan = FrameTraining(
            *(list(feature_cols), list(label_cols), input_shapes, batch_size, epochs),
            *(shuffle, random_seed, verbose, ()),
        )

    @abc.abstractmethod
    def _training(self) -> Tuple[Callable[..., Optional[Trained]], Tuple[Any, ...]]:
        """Return what each rank calls, as ``function(training, *arguments)``; rank 0 returns what was trained."""

    @abc.abstractmethod
    def _fitted(self, trained: Trained) -> FittedModel:
        """Return the Transformer that has the model with what was trained."""

    def _fit(self, dataset: Any) -> FittedModel:
        frames = self._frames(dataset)
        function, arguments = self._training()
        with written(frames, self.work_dir) as places:
            training = dataclasses.replace(self.plan, places=places)
            return self._fitted(run(function, (training, *arguments), num_proc=self.num_proc, **self._run)[0])

    def _frames(self, dataset: Any) -> List[Any]:
        columns = [*self.plan.feature_cols, *self.plan.label_cols]
        if self.validation is None:
            parts = [dataset]
        elif isinstance(self.validation, str):
            chosen = functions.coalesce(numbers(dataset, self.validation).cast("boolean"), functions.lit(False))
            parts = [dataset.filter(~chosen), dataset.filter(chosen)]
        else:
            parts = dataset.randomSplit([1 - self.validation, self.validation], self.plan.seed)
        return [part.select([numbers(part, name).alias(name) for name in columns]) for part in parts]


class FittedModel(Model):
    """A trained model: ``transform`` adds a column for each output, ``LABEL__output``: a number, or a list of them.

    ``model``: the framework's. ``history``: a number for each epoch: ``loss``, and ``val_loss`` with validation.
    ``output_cols`` may be set to other names.
    """

    def __init__(self, model: Any, trained: Trained, training: FrameTraining) -> None:
        super().__init__()
        self.model, self.history = model, trained.history
        self.output_cols = [f"{name}__output" for name in training.label_cols]
        self._are_numbers = [shape in ((), (1,)) for shape in trained.output_shapes]
        self._training = training

    def getModel(self) -> Any:
        """Return the model, as Horovod's method of this name does."""
        return self.model

    @abc.abstractmethod
    def _predict(self) -> Tuple[Callable[..., List[np.ndarray]], Any]:
        """Return a function and the model as Spark can pickle it: ``function(model, features)`` gives the outputs."""

    def _transform(self, dataset: Any) -> Any:
        inputs = {f"{_INPUT}{name}": numbers(dataset, name) for name in self._training.feature_cols}
        kinds = [FloatType() if is_number else ArrayType(FloatType()) for is_number in self._are_numbers]
        added = [StructField(name, kind) for name, kind in zip(self.output_cols, kinds)]
        outputs = _Outputs(*self._predict(), self._training, self.output_cols, self._are_numbers)
        return dataset.withColumns(inputs).mapInArrow(outputs, StructType([*dataset.schema.fields, *added]))


class _Outputs:
    """Adds the model's outputs to batches of rows; Spark pickles it."""

    def __init__(
        self,
        predict: Callable[..., List[np.ndarray]],
        model: Any,
        training: FrameTraining,
        names: Sequence[str],
        are_numbers: Sequence[bool],
    ) -> None:
        self._predict, self._model, self._shapes = predict, model, training.input_shapes
        self._inputs = [f"{_INPUT}{name}" for name in training.feature_cols]
        self._names, self._are_numbers = names, are_numbers

    def __call__(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            columns = {name[len(_INPUT) :]: batch.column(name) for name in self._inputs}
            arrays = as_arrays(pyarrow.table(columns), list(columns))
            outputs = self._predict(self._model, shaped(arrays, self._shapes))
            batch = batch.drop_columns(self._inputs)
            for name, is_number, output in zip(self._names, self._are_numbers, outputs):
                flat = np.ascontiguousarray(output, np.float32).reshape(batch.num_rows, -1)
                ends = np.arange(0, flat.size + 1, max(flat.shape[1], 1), dtype=np.int32)
                column = flat[:, 0] if is_number else pyarrow.ListArray.from_arrays(ends, flat.ravel())
                batch = batch.append_column(name, pyarrow.array(column) if is_number else column)
            yield batch


def shaped(columns: Mapping[str, np.ndarray], shapes: Shapes) -> List[np.ndarray]:
    """Return the inputs of a model, by column, in the shapes that the user has named."""
    if shapes is None:
        return list(columns.values())
    return [_shaped(name, array, shape) for (name, array), shape in zip(columns.items(), shapes)]


def _shaped(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    row = array.shape[1:]
    if len(shape) == 0 or shape[0] not in (-1, len(array)) or math.prod(shape[1:]) != math.prod(row):
        raise InvalidArgument(
            f"column {name} has rows of shape {list(row)}, and input_shapes says {list(shape)} for it: -1 comes first, "
            "for the rows, and then as many numbers as a row has"
        )
    return array.reshape(shape)
