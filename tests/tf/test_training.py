"""Training without ``fit``: a loop with a tape, eagerly and in a tf.function, and sessions of TF1."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

STEPS, GLOBAL = 6, 24


def batches(size=1, rank=0, passes=1):
    """Return what a rank gets of each batch."""
    random = np.random.RandomState(0)
    x = random.randn(STEPS, passes, size, GLOBAL // size // passes, 5).astype("f")
    return [(part, part[:, :1] * part[:, 1:2]) for part in x[:, :, rank].reshape(-1, *x.shape[3:])]


def weights():
    random = np.random.RandomState(1)
    return random.randn(5, 7).astype("f"), random.randn(7, 1).astype("f")


def loss_of(x, y, first, second):
    return tf.reduce_mean((tf.tanh(tf.matmul(x, first)) @ second - y) ** 2)


def same_everywhere(ddl, arrays):
    rows = ddl.allgather(tf.constant(np.concatenate([array.reshape(-1) for array in arrays])[None])).numpy()
    return (rows.view(np.uint32) == rows.view(np.uint32)[0]).all()


def with_a_tape(make, mode, data, ddl=None):
    """Return the weights after a loop with Keras's optimizer."""
    import keras

    variables = [keras.Variable(array) for array in weights()]
    optimizer = make()
    optimizer.build(variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y, *variables)
        if ddl is not None:
            tape = ddl.DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    run = tf.function(step) if mode == "function" else step
    for x, y in data:
        run(tf.constant(x), tf.constant(y))
    return [np.asarray(variable) for variable in variables]


def with_a_session(ddl, name, data, passes=1, check_every=0, **how):
    """Return the weights after steps of a monitored session; without ``ddl`` in one process."""
    tf1 = tf.compat.v1
    make = {
        "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
        "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
        "adam": lambda: tf1.train.AdamOptimizer(0.05),
    }[name]
    with tf.Graph().as_default():
        x, y = tf1.placeholder(tf.float32, [None, 5]), tf1.placeholder(tf.float32, [None, 1])
        variables = [tf1.get_variable(f"w{i}", initializer=array) for i, array in enumerate(weights())]
        counter = tf1.train.get_or_create_global_step()
        optimizer = make()
        if ddl is not None:
            optimizer = ddl.DistributedOptimizer(
                optimizer, backward_passes_per_step=passes, check_every=check_every, **how
            )
        pairs = optimizer.compute_gradients(loss_of(x, y, *variables), variables)
        pairs = [(tf.clip_by_value(gradient, -5.0, 5.0), variable) for gradient, variable in pairs]
        train = optimizer.apply_gradients(pairs, global_step=counter)
        with tf1.train.MonitoredTrainingSession() as session:
            for inputs, other in data:
                session.run(train, {x: inputs, y: other})
            return session.run([*variables, counter])


def loops():
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    rank, size = ddl.rank(), ddl.size()
    for make, mode in (
        (lambda: keras.optimizers.SGD(0.1), "eager"),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "function"),
        (lambda: keras.optimizers.Adam(0.05), "function"),
    ):
        alone = with_a_tape(make, mode, batches())
        trained = with_a_tape(make, mode, batches(size, rank), ddl)
        assert all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(alone, trained)), mode
        assert same_everywhere(ddl, trained)


def sessions():
    import ddl_tensorflow as ddl

    ddl.init()
    rank, size = ddl.rank(), ddl.size()
    for name, passes, options in (
        ("sgd", 1, {"num_groups": 1}),
        ("momentum", 1, {"check_every": 2}),
        ("adam", 1, {"gradient_predivide_factor": 2.0}),
        ("adam", 2, {"average_aggregated_gradients": True, "check_every": 1}),
    ):
        *alone, steps = with_a_session(None, name, batches())
        *trained, own = with_a_session(ddl, name, batches(size, rank, passes), passes, **options)
        assert steps == STEPS and own == passes * STEPS, (name, own)  # passes are counted, as in Horovod
        assert all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(alone, trained)), (name, passes)
        assert same_everywhere(ddl, trained)
    eagerly(ddl)
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        variable = tf1.get_variable("w", initializer=[1.0])
        optimizer = ddl.DistributedOptimizer(tf1.train.GradientDescentOptimizer(1.0), check_every=1)
        with pytest.raises(ddl.InvalidArgument, match="counts by global_step"):
            optimizer.minimize(variable * 2)
        with pytest.raises(ddl.InvalidArgument, match="distributed already"):
            ddl.DistributedOptimizer(optimizer)


def eagerly(ddl):
    variable = tf.Variable([float(ddl.rank())])
    optimizer = ddl.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    for expected in (0.0, -2.0 * (ddl.size() - 1)):
        optimizer.minimize(lambda: variable * 2 * ddl.rank(), var_list=[variable])
        assert variable.numpy() - ddl.rank() == expected


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["op", "numpy"])
def test_loops(way):
    ranks.run(2, loops, initialise=False, env={"DDL_TENSORFLOW_OP": "0"} if way == "numpy" else {})


@pytest.mark.slow
def test_sessions():
    ranks.run(2, sessions, initialise=False)
