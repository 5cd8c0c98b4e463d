"""Every update of variables is noted in the rank's record, once: of Keras's optimizers, of TF1's, and with tapes."""

from __future__ import annotations

import numpy as np
import pytest
import ranks
from own_record import steps

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

WAYS = {"eager": lambda function: function, "graph": tf.function}


def each_step(run, values):
    """Return the steps that have been noted after each call of ``run``."""
    before, counts = steps(), []
    for value in values:
        run(tf.fill([2], float(value)))
        counts.append(steps() - before)
    return counts


def applying(optimizer, weight):
    def step(gradient):
        optimizer.apply([gradient], [weight])

    return step


def of_keras():
    """Steps that an infinite gradient of rank 1 leaves out are none, and neither are passes that are added up."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    sgd, scaling, wrapped = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer, ddl.DistributedOptimizer
    values = [1.0, np.inf if ddl.rank() == 1 else 1.0, 1.0, 1.0]
    makers = {
        "plain": (lambda: wrapped(sgd(0.1)), [1, 2, 3, 4]),
        "two passes": (lambda: wrapped(sgd(0.1), backward_passes_per_step=2), [0, 1, 1, 2]),
        "two passes of Keras": (lambda: wrapped(sgd(0.1, gradient_accumulation_steps=2)), [0, 1, 1, 2]),
        "scaler outside": (lambda: scaling(wrapped(sgd(0.1)), 2.0), [1, 1, 2, 3]),
        "scaler inside": (lambda: wrapped(scaling(sgd(0.1), 2.0)), [1, 1, 2, 3]),
    }
    for wrap in WAYS.values():
        for name, (make, expected) in makers.items():
            weight, optimizer = keras.Variable([1.0, 2.0]), make()
            optimizer.build([weight])
            counts = each_step(wrap(applying(optimizer, weight)), values)
            assert counts == expected, (name, counts)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["op", "numpy"])
def test_optimizers_of_keras(way) -> None:
    ranks.run(2, of_keras, initialise=False, env={"DDL_TENSORFLOW_OP": "0"} if way == "numpy" else {})


def fits():
    """With a distributed optimizer, also where it is wrapped by Keras for float16; and with averages of weights."""
    import keras

    import ddl_tensorflow.keras as ddl

    ddl.init()
    x = np.random.RandomState(ddl.rank()).randn(24, 3).astype("f")
    counts = []
    for policy, optimizer, callback in (
        ("float32", ddl.DistributedOptimizer(keras.optimizers.SGD(0.1)), ddl.callbacks.MetricAverageCallback()),
        ("mixed_float16", ddl.DistributedOptimizer(keras.optimizers.SGD(0.1)), ddl.callbacks.MetricAverageCallback()),
        ("float32", keras.optimizers.SGD(0.1), ddl.callbacks.WeightAverageCallback(every=2)),
    ):
        keras.config.set_dtype_policy(policy)
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer, "mse", jit_compile=False)
        before = steps()
        model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[callback])
        assert steps() - before == int(optimizer.iterations)
        counts.append(steps() - before)
    return counts


@pytest.mark.slow
def test_fit() -> None:
    for plain, half, averaged in ranks.run(2, fits, initialise=False):
        assert plain == averaged == 6 and 0 < half < 6  # the scaler begins with a scale that is too large


def by_tapes():
    import ddl_tensorflow as ddl

    ddl.init()
    variable = tf.Variable([1.0, 2.0])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        (gradient,) = ddl.DistributedGradientTape(tape).gradient(loss, [variable])
        variable.assign_sub(gradient)

    for wrap in WAYS.values():
        assert each_step(wrap(step), [1.0] * 3) == [1, 2, 3]


def test_tapes() -> None:
    ranks.run(2, by_tapes, initialise=False)


def of_tf1():
    import ddl_tensorflow as ddl

    ddl.init()
    tf1 = tf.compat.v1
    for passes, expected in ((1, [1, 2, 3, 4]), (2, [0, 1, 1, 2])):

        def make(passes=passes):
            return ddl.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=passes)

        variable, optimizer = tf.Variable([1.0, 2.0]), make()
        run = lambda x, minimize=optimizer.minimize, v=variable: minimize(lambda: v * x, var_list=[v])  # noqa: E731
        assert each_step(run, [1.0] * 4) == expected
        with tf.Graph().as_default():
            x = tf1.placeholder(tf.float32, [2])
            variable = tf1.get_variable("v", initializer=[1.0, 2.0])
            train = make().minimize(variable * x, global_step=tf1.train.get_or_create_global_step())
            with tf1.train.MonitoredTrainingSession() as session:
                before, counts = steps(), []
                for _ in range(4):
                    session.run(train, {x: [1.0, 1.0]})
                    counts.append(steps() - before)
        assert counts == expected


def test_optimizers_of_tf1() -> None:
    ranks.run(2, of_tf1, initialise=False)


def alone():
    """A rank without others: noted eagerly; in a graph there is nothing of DDL, so that XLA compiles it."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    weight, optimizer = keras.Variable([1.0, 2.0]), ddl.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build([weight])
    step = applying(optimizer, weight)
    assert each_step(step, [1.0] * 2) == [1, 2]
    assert each_step(tf.function(step, jit_compile=True), [1.0] * 2) == [0, 0]


def test_a_single_rank() -> None:
    ranks.run(1, alone, initialise=False)
