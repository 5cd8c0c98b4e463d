"""Callbacks and states that need no distributed optimizer: learning rates, averages of weights, elastic; the names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


def linear(optimizer, seed=0):
    """One weight and one bias; its initial values differ by rank unless seeds say otherwise."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def data(rank=0, rows=24):
    x = np.random.default_rng(rank).normal(size=(rows, 2)).astype(np.float32)
    return x, x @ np.array([1.0, -2.0], np.float32)


class Rates(keras.callbacks.Callback):
    """Notes the rate with which each batch is trained."""

    def on_train_begin(self, logs=None):
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(float(self.model.optimizer.learning_rate.numpy()))


def learning_rates(ddl):
    x, y = data()
    rates = Rates()
    warmup = ddl.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2)
    drop = ddl.callbacks.LearningRateScheduleCallback(0.2, 0.1, start_epoch=2)
    model = linear(keras.optimizers.SGD(0.2))
    logs = model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=[warmup, drop, rates]).history["lr"]
    size = ddl.size()
    rising = [0.2 / size * ((step + 1) / 3 * (size - 1) / 2 + 1) for step in range(6)]
    assert np.allclose(rates.seen, [*rising, *[0.2] * 3, *[0.02] * 3])
    assert np.allclose(logs, [rising[2], 0.2, 0.2, 0.02])
    within = ddl.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: 1 / (1 + epoch), start_epoch=1, end_epoch=2, staircase=False, momentum_correction=False
    )
    model.optimizer.learning_rate = 0.5
    model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[within, rates])
    assert np.allclose(rates.seen, [0.5] * 3 + [1 / (2 + batch / 3) for batch in range(3)] + [1 / (2 + 2 / 3)] * 3)


def momentum(ddl):
    """A velocity keeps what it moves weights by: gradients over the rate, as if it had been the new one all along."""
    x, y = data()
    for optimizer in (keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.RMSprop(0.1, momentum=0.9)):
        model = linear(optimizer)
        model.fit(x, y, epochs=1, batch_size=8, verbose=0)
        (slot, *_) = [v for v in model.optimizer.variables if "momentum" in v.path]
        before = slot.numpy()
        halve = ddl.callbacks.LearningRateScheduleCallback(0.05, 1.0)
        halve.set_params({})
        halve.set_model(model)
        halve.on_train_begin()
        halve.on_epoch_begin(0)
        halve.on_train_batch_begin(0)
        assert np.allclose(slot.numpy(), before / 2) and np.any(before)
        halve.on_train_batch_begin(0)  # the same rate once more
        assert np.allclose(slot.numpy(), before / 2)


def refusals(ddl):
    x, y = data()
    with pytest.raises(ddl.InvalidArgument, match="initial_lr is needed"):
        ddl.callbacks.LearningRateScheduleCallback(None, 1.0)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(schedule))
    for optimizer in (keras.optimizers.SGD(schedule), scaled):
        with pytest.raises(ddl.InvalidArgument, match="rate follows ExponentialDecay"):
            linear(optimizer).fit(x, y, verbose=0, callbacks=[ddl.callbacks.LearningRateWarmupCallback(0.1)])
    unknown = tf.data.Dataset.from_generator(
        lambda: iter([(x, y)]), output_signature=(tf.TensorSpec((None, 2)), tf.TensorSpec((None,)))
    )
    with pytest.raises(ddl.InvalidArgument, match="pass steps_per_epoch"):
        linear("sgd").fit(unknown, verbose=0, callbacks=[ddl.callbacks.LearningRateWarmupCallback(0.1)])
    with pytest.raises(ddl.InvalidArgument, match="every=0 is not"):
        ddl.callbacks.WeightAverageCallback(every=0)
    with pytest.raises(ddl.InvalidArgument, match="has no variables yet"):
        ddl.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ddl.InvalidArgument, match="no legacy optimizers"):
        ddl.load_model("x.keras", legacy_opts=True)


def metrics(ddl):
    """Numbers and arrays of numbers; what ranks have different is named."""
    rank, size = ddl.rank(), ddl.size()
    average = ddl.callbacks.MetricAverageCallback()
    average.set_model(linear("sgd"))
    average.model.stop_training = False
    assert ddl.average_metrics({"a": tf.constant(float(rank))}) == {"a": (size - 1) / 2}
    logs = {"loss": float(rank), "by_class": np.array([rank, 2.0 * rank])}
    average.on_epoch_end(0, logs)
    mean = (size - 1) / 2
    assert logs["loss"] == mean and logs["by_class"].tolist() == [mean, 2 * mean]
    with pytest.raises(ddl.InvalidArgument, match="rank 1 has the metric 'val_loss', rank 0 has not"):
        average.on_epoch_end(0, {"loss": 1.0, **({"val_loss": 1.0} if rank else {})})


def weights(ddl):
    """Averages of weights and velocities are what averages of gradients would have made: one process shows it."""
    rank, size = ddl.rank(), ddl.size()
    parts = [data(r) for r in range(size)]
    whole = linear(keras.optimizers.SGD(0.1, momentum=0.9))
    for start in range(0, 24, 8):
        x, y = (np.concatenate([part[i][start : start + 8] for part in parts]) for i in range(2))
        whole.train_on_batch(x, y)
    model = linear(keras.optimizers.SGD(0.1 + rank, momentum=0.9), seed=rank)
    average = ddl.callbacks.WeightAverageCallback(0)
    model.fit(*parts[rank], batch_size=8, shuffle=False, verbose=0, callbacks=[average])
    own = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    theirs = [v.numpy() for v in [*whole.variables, *whole.optimizer.variables]]
    assert all(np.allclose(array, other, rtol=1e-5, atol=1e-6) for array, other in zip(own, theirs))
    for every in (2, None):
        model.fit(*parts[rank], batch_size=8, verbose=0, callbacks=[ddl.callbacks.WeightAverageCallback(0, every)])
        ours = ddl.allgather(np.concatenate([np.ravel(v.numpy()) for v in model.variables])[None]).numpy()
        assert (ours == ours[0]).all() and np.any(ours)


def states(ddl):
    """What a state has committed comes back, from the middle of an epoch, and training goes on as if uncut."""
    x, y = data()
    uncut = linear(keras.optimizers.SGD(0.1, momentum=0.9))
    uncut.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0)

    model = linear(keras.optimizers.SGD(0.1, momentum=0.9), seed=ddl.rank())
    for variable, other in zip(model.variables, linear("sgd").variables):
        variable.assign(other if ddl.rank() == 0 else other * 0)
    state = ddl.elastic.KerasState(model, epoch=0, batch=0)
    runs = []

    class Cut(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not runs[1:] and state.epoch == 1 and batch == 3:
                raise ddl.elastic.HostsUpdatedInterrupt(skip_sync=True)

    @ddl.elastic.run
    def train(state):
        runs.append((state.epoch, state.batch))
        if runs[1:]:
            state.restore()  # four batches are committed of the second epoch, and it was cut in the fourth
            runs[1] = (state.epoch, state.batch)
        callbacks = [
            ddl.elastic.UpdateBatchStateCallback(state),
            ddl.elastic.UpdateEpochStateCallback(state),
            ddl.elastic.CommitStateCallback(state, batches_per_commit=3),
            Cut(),
        ]
        while state.epoch < 3:
            rest = slice(4 * state.batch, None)
            model.fit(x[rest], y[rest], batch_size=4, shuffle=False, verbose=0, callbacks=callbacks, epochs=1)

    train(state)
    assert runs == [(0, 0), (1, 3)] and (state.epoch, state.batch) == (3, 0)
    pairs = zip([*uncut.variables, *uncut.optimizer.variables], [*model.variables, *model.optimizer.variables])
    assert all(np.array_equal(variable.numpy(), other.numpy()) for variable, other in pairs)
    state.epoch = 2
    count = ddl.elastic.UpdateEpochStateCallback(state)
    model.fit(x, y, initial_epoch=2, epochs=4, verbose=0, callbacks=[count])
    assert state.epoch == 4
    assert issubclass(ddl.elastic.KerasState, ddl.elastic.ObjectState)


def values(ddl):
    """The verbs on values: eagerly, in a function, in a session."""
    rank, size = ddl.rank(), ddl.size()
    total = size * (size - 1) / 2

    def all_of_them(x):
        return [
            ddl.allreduce(x, op=ddl.Sum),
            ddl.allreduce(x, op=ddl.Average, prescale_factor=2.0, postscale_factor=3.0),
            ddl.allgather(x),
            ddl.broadcast(x, 1),
            ddl.reducescatter(x, op=ddl.Sum),
        ]

    def check(results):
        expected = [[total] * size, [6 * total / size] * size, [r for r in range(size) for _ in range(size)]]
        assert [np.asarray(result).tolist() for result in results] == [*expected, [1.0] * size, [total]]

    own = [float(rank)] * size
    check(all_of_them(own))
    check(tf.function(all_of_them)(tf.constant(own)))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        results = all_of_them(own)
        assert all(isinstance(result, np.ndarray) for result in results)
        check(results)
        variable = tf.compat.v1.get_variable("v", initializer=float(rank))
        session.run(variable.initializer)
        ddl.broadcast_global_variables(1)
        assert session.run(variable) == 1.0


def everything():
    import ddl_tensorflow.keras as ddl

    with pytest.raises(ddl.InvalidState, match="init"):
        ddl.allreduce(1.0)
    ddl.init()
    assert ddl.rank() == ddl.cross_rank() * ddl.local_size() + ddl.local_rank()
    assert ddl.size() == ddl.cross_size() * ddl.local_size() > ddl.rank()
    for check in (values, learning_rates, momentum, refusals, metrics, weights, states):
        check(ddl)
    ddl.shutdown()
    assert not ddl.is_initialized()


@pytest.mark.slow
def test_callbacks():
    ranks.run(2, everything, initialise=False)


ON_TORCH = """
import numpy as np, keras, ddl as job, ddl_tensorflow.keras as ddl
assert keras.backend.backend() == "torch"
ddl.init()
for make in (lambda: ddl.DistributedOptimizer(keras.optimizers.SGD()), lambda: ddl.allreduce(1.0)):
    try:
        make()
    except ddl.Error as error:
        assert "Keras runs on torch" in str(error) and "ddl_torch" in str(error), error
        assert type(error).__name__ == "ConfigError"
    else:
        raise AssertionError("not refused")
keras.utils.set_random_seed(ddl.rank())
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.1)])
x = np.random.default_rng(ddl.rank()).normal(size=(24, 2)).astype(np.float32)
y = x @ np.array([1.0, -2.0], np.float32)
model.compile(keras.optimizers.Adam(0.1), "mse")
callbacks = [
    ddl.callbacks.WeightAverageCallback(0),
    ddl.callbacks.MetricAverageCallback(),
    ddl.callbacks.LearningRateWarmupCallback(0.1, 1),
    ddl.callbacks.BestModelCheckpoint(monitor="loss", filepath="best.keras"),
]
history = model.fit(x, y, epochs=2, batch_size=8, verbose=0, callbacks=callbacks).history
state = ddl.elastic.KerasState(model)
state.sync()
root = job.broadcast_object([*model.get_weights(), history["loss"]])
assert len(root) == 3 and all(np.array_equal(*pair) for pair in zip(root, [*model.get_weights(), history["loss"]]))
model.compile("sgd", "mse")
try:
    model.fit(x, y, verbose=0, callbacks=[ddl.callbacks.BroadcastGlobalVariablesCallback(0)])
except ddl.InvalidArgument as error:
    assert "use WeightAverageCallback instead" in str(error), error
else:
    raise AssertionError("a model that averages nothing was trained")
ddl.shutdown()
print("rank is done")
"""


@pytest.mark.slow
def test_keras_on_torch(tmp_path):
    """Callbacks do all there; the rest says what to use instead. KERAS_BACKEND is read when Keras is imported."""
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(ON_TORCH, encoding="utf-8")
    command = [sys.executable, "-m", "ddl.launch", "-np", "2", sys.executable, str(script)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.count("rank is done") == 2, done.stderr[-3000:]
    assert (tmp_path / "best.keras").exists()
