"""``hvd.elastic`` of TensorFlow and Keras where ranks are lost and join: training goes on, and weights stay equal."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def network() -> Any:
    import keras

    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])


def train(decorate: Callable[[Any], Any]) -> Dict[str, Any]:
    """Train by a step that ``decorate`` may make a graph of, until the test has seen enough."""
    import keras

    import ddl_tensorflow as hvd

    model, optimizer = network(), keras.optimizers.SGD(0.01)
    x = tf.random.normal((8, 4), seed=hvd.rank())
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)
    sizes: List[int] = []

    @decorate
    def step() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(tf.square(model(x) - 1.0))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    @hvd.elastic.run
    def loop(state: Any) -> None:
        sizes.append(hvd.size())
        while True:
            ends = float(hvd.allreduce(tf.constant(float(elastic_job.may_end())), op=hvd.Sum, name="ends"))
            step()
            state.batch += 1
            elastic_job.reached(state.batch)
            state.commit()
            if ends:
                return

    loop(state)
    weights = [variable.numpy().tolist() for variable in model.variables]
    return {"rank": hvd.rank(), "sizes": sizes, "batch": state.batch, "weights": weights}


def with_a_tape() -> Dict[str, Any]:
    return train(lambda step: step)


def in_a_graph() -> Dict[str, Any]:
    """The graph is made when there is one rank."""
    return train(tf.function)


@pytest.mark.slow
def test_a_graph_of_the_only_rank_averages_when_another_joins() -> None:
    with ElasticJob(1, in_a_graph) as job:
        job.wait_until(3)
        job.gain(steps=5)
        answers = job.finish()
        first, second = answers[0], answers[1]
    assert (first["sizes"], second["sizes"]) == ([1, 2], [2])
    assert first["weights"] == second["weights"]


def with_fit() -> Dict[str, Any]:
    import keras

    import ddl
    import ddl_tensorflow.keras as hvd

    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    sizes: List[int] = []

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            elastic_job.reached(100 * state.epoch + state.batch)
            ends = ddl.allreduce([float(elastic_job.may_end())], op="sum")
            self.model.stop_training = bool(ends[0])

    @hvd.elastic.run
    def train(state: Any) -> None:
        sizes.append(ddl.size())
        callbacks = [
            *(hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state)),
            *(hvd.elastic.CommitStateCallback(state), Stop()),
        ]
        x = tf.random.normal((400, 4), seed=ddl.rank())
        model.fit(x, x[:, :1], batch_size=4, epochs=1000, initial_epoch=state.epoch, callbacks=callbacks, verbose=0)

    train(state)
    weights = [variable.numpy().tolist() for variable in model.variables]
    return {"rank": ddl.rank(), "sizes": sizes, "batch": 0, "weights": weights}


@pytest.mark.few(1)
@pytest.mark.parametrize("function", [with_a_tape, with_fit])
def test_a_rank_is_lost_and_another_joins(function: Any) -> None:
    with ElasticJob(3, function) as job:
        answers = job.kill_and_replace()
    assert [answer["sizes"] for answer in answers] == [[3, 2, 3], [3, 2, 3], [3]]
    for answer in answers:
        assert answer["weights"] == answers[0]["weights"] and answer["batch"] == answers[0]["batch"]
