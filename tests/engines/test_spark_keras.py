"""``KerasEstimator`` on a real Spark."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Iterator, List

import local_spark
import numpy as np
import pytest

import ddl
import ddl.spark

keras = pytest.importorskip("keras", reason="Keras is not installed")
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

# Java starts within minutes on a busy machine, and each worker loads TensorFlow.
pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900), local_spark.warns_of_pandas]
#: What numpy says of TensorFlow's variables when Keras saves a model.
pytestmark += [pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with local_spark.session("local[2]", tmp_path_factory.mktemp("spark")) as session:
        local_spark.pickle_by_value(__name__)
        yield session


def rows(count: int) -> List[Any]:
    x = np.random.default_rng(1).integers(-8, 8, (count, 3)) / 8
    return [([float(value) for value in row], float(row @ np.array([1.0, -2.0, 0.5]) + 1)) for row in x]


def frame(spark: Any, count: int) -> Any:
    return spark.createDataFrame(rows(count), "x array<double>, y double").repartition(3)


def test_an_estimator_takes_the_steps_of_one_process(spark: Any, tmp_path: Path) -> None:
    """With all rows in one batch, whose order does not matter."""
    from ddl_tensorflow.keras.spark import KerasEstimator

    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    before = model.get_weights()
    estimator = KerasEstimator(
        model=model,
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=keras.losses.MeanSquaredError(),
        metrics=["mae"],
        feature_cols=["x"],
        label_cols=["y"],
        batch_size=1000,
        epochs=6,
        num_proc=2,
        work_dir=str(tmp_path),
        verbose=0,
    )
    df = frame(spark, 60)
    fitted = estimator.fit(df)
    assert not list(tmp_path.iterdir())  # the Parquet files are gone
    assert all((old == new).all() for old, new in zip(before, model.get_weights()))

    x, y = (np.array([row[column] for row in rows(60)]) for column in range(2))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    history = model.fit(x, y[:, None], batch_size=60, epochs=6, shuffle=False, verbose=0).history
    assert fitted.history["loss"] == pytest.approx(history["loss"], rel=1e-4)
    assert history["loss"][-1] < history["loss"][0] and len(fitted.history["mae"]) == 6
    for own, value in zip(fitted.getModel().get_weights(), model.get_weights()):
        assert np.allclose(own, value, rtol=1e-4, atol=1e-5)

    shown = fitted.transform(df).collect()
    expected = model.predict_on_batch(np.array([row.x for row in shown]))[:, 0]
    assert [row.y__output for row in shown] == pytest.approx(expected.tolist(), abs=1e-4)


def weights_of_all(training: Any, sent: Any, *others: Any) -> Any:
    from ddl_tensorflow.keras.spark import _train

    _train(training, sent, *others)
    return [value.tolist() for value in sent.model.get_weights()]


def test_all_ranks_come_to_the_same_weights(spark: Any, tmp_path: Path) -> None:
    from ddl.spark.shares import written
    from ddl_tensorflow.keras.spark import KerasEstimator

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    settings = dict(feature_cols=["x"], label_cols=["y"], batch_size=4, epochs=2, work_dir=str(tmp_path), verbose=0)
    training = KerasEstimator(model=model, optimizer="sgd", loss="mse", **settings)
    _, arguments = training._training()
    with written(training._frames(frame(spark, 41)), str(tmp_path)) as places:
        plan = dataclasses.replace(training.plan, places=places)
        first, second = ddl.spark.run(weights_of_all, (plan, *arguments), num_proc=2)
    assert first == second and first != [value.tolist() for value in model.get_weights()]


def test_a_layer_of_the_users_and_validation(spark: Any, tmp_path: Path) -> None:
    from ddl_tensorflow.keras.spark import KerasEstimator

    class Doubled(keras.layers.Layer):
        def call(self, values: Any) -> Any:
            return 2 * values

    df = frame(spark, 41).selectExpr("x[0] as first", "x", "cast(y > 1 as int) as above")
    first, others = keras.Input((1,)), keras.Input((3,))
    joined = keras.layers.Concatenate()([first, Doubled()(others)])
    model = keras.Model([first, others], keras.layers.Dense(2, activation="softmax")(joined))
    estimator = KerasEstimator(
        model=model,
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        custom_objects={"Doubled": Doubled},
        feature_cols=["first", "x"],
        input_shapes=[[-1, 1], [-1, 3]],
        label_cols=["above"],
        validation=0.3,
        batch_size=4,
        epochs=8,
        num_proc=2,
        work_dir=str(tmp_path),
    )
    fitted = estimator.fit(df)
    assert set(fitted.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert fitted.history["loss"][-1] < fitted.history["loss"][0]
    shown = fitted.transform(df).collect()
    assert all(sum(row.above__output) == pytest.approx(1, abs=1e-5) for row in shown) and len(shown) == 41
