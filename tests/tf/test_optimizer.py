"""``DistributedOptimizer`` of Keras: fit on several ranks is fit in one process; ranks are the same to the bit."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

GLOBAL = 12  #: samples of a batch, of all ranks


def data():
    random = np.random.RandomState(0)
    x = random.randn(48, 6).astype("f")
    return x, (x[:, :1] * x[:, 1:2]).astype("f")


def model(policy=None):
    import keras

    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, "tanh", dtype=policy), keras.layers.Dense(1, dtype=policy)]
    return keras.Sequential([keras.layers.Input((6,)), *layers])


def fit(optimizer, ddl=None, epochs=2, passes=1, **how):
    """Train on this rank's share of every batch; without ``ddl`` on all of it. Returns the model."""
    x, y = data()
    batch = GLOBAL // passes
    if ddl is not None:
        batch //= ddl.size()
        rows = np.arange(len(x)).reshape(-1, ddl.size(), batch)[:, ddl.rank()].reshape(-1)
        x, y = x[rows], y[rows]
    net = model()
    net.compile(optimizer, "mse", **how)
    net.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    return net


def digest(net):
    return hashlib.sha256(b"".join(weight.tobytes() for weight in net.get_weights())).hexdigest()


def apart(net, other):
    return max(float(abs(a - b).max()) for a, b in zip(net.get_weights(), other.get_weights()))


def equal_one_process(names, folder):
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    make = {
        "sgd": lambda: keras.optimizers.SGD(0.1),
        "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0, weight_decay=0.01),
    }
    digests = []
    for name in names:
        alone = fit(make[name]())
        for how in {"sgd": ({}, {"run_eagerly": True}), "adam": ({"steps_per_execution": 2},)}.get(name, ({},)):
            net = fit(ddl.DistributedOptimizer(make[name](), check=3), ddl, **how)
            assert net.jit_compile is False  # the op cannot be compiled by XLA
            assert apart(net, alone) < 1e-6, (name, how)
            digests.append(digest(net))
    if "momentum" in names:
        for average in (True, False):  # two passes of half a batch are one of a whole one
            optimizer = make["momentum"]()
            options = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
            if not average:
                options |= {"gradient_predivide_factor": 2.0}
                optimizer.learning_rate = 0.05
            net = fit(ddl.DistributedOptimizer(optimizer, **options), ddl, passes=2)
            reference = fit(make["momentum"]())
            assert apart(net, reference) < 1e-6 and int(net.optimizer.iterations) == 16  # passes, as in Horovod
            digests.append(digest(net))
        saved(net, f"{folder}/{ddl.rank()}.keras")
    return digests


def saved(net, path):
    """A model is saved as if DDL had not been there; its class makes more of its kind."""
    import keras

    net.save(path)
    config = json.loads(zipfile.ZipFile(path).read("config.json"))["compile_config"]["optimizer"]
    assert (config["module"], config["class_name"]) == ("keras.optimizers", "SGD") and "ddl" not in str(config)
    again = keras.models.load_model(path)
    assert type(again.optimizer) is keras.optimizers.SGD and isinstance(net.optimizer, keras.optimizers.SGD)
    for variable, other in zip(again.optimizer.variables, net.optimizer.variables):
        assert np.array_equal(variable, other)
    rebuilt = type(net.optimizer).from_config(net.optimizer.get_config())
    assert type(rebuilt).__name__ == "DistributedSGD" and rebuilt.momentum == 0.9
    assert type(net.optimizer.__class__.from_config(net.optimizer.get_config())) is keras.optimizers.SGD


#: In a process of its own: what a rank has saved is loaded while there is no DDL; then Keras is said to use torch.
ALONE = """
import sys
sys.modules.update(dict.fromkeys(("ddl", "ddl_tensorflow")))
import keras
net = keras.models.load_model(sys.argv[1])
assert type(net.optimizer) is keras.optimizers.SGD and int(net.optimizer.iterations) == 16
for name in ("ddl", "ddl_tensorflow"):
    del sys.modules[name]
import ddl_tensorflow as ddl
keras.backend.backend = lambda: "torch"
try:
    ddl.DistributedOptimizer(net.optimizer)
except ddl.InvalidArgument as error:
    assert "import ddl_torch instead" in str(error)
    print("said")
"""


@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path):
    names = ["sgd", "momentum", "adam"]
    first, second = ranks.run(2, equal_one_process, names, str(tmp_path), initialise=False)
    assert first == second and len(first) == 6
    command = [sys.executable, "-c", ALONE, str(tmp_path / "0.keras")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "said\n", done.stderr[-2000:]


@pytest.mark.slow
def test_three_ranks_equal_one_process(tmp_path):
    digests = ranks.run(3, equal_one_process, ["adam"], str(tmp_path), initialise=False)
    assert digests[0] == digests[1] == digests[2]


def infinity(way):
    """Mixed precision: rank 1 has infinite gradients in one batch: all skip that step, and halve the scale."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    x, y = data()
    x = x[:24].copy()
    if ddl.rank() == 1:
        x[8:12] = 1e30
    net = model("mixed_float16")
    inner = keras.optimizers.Adam(0.01)
    if way == "outside":  # as compile does, too, for a model of a mixed policy
        optimizer = keras.optimizers.LossScaleOptimizer(ddl.DistributedOptimizer(inner, check_every=1), 2.0**10)
    elif way == "inside":
        optimizer = ddl.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(inner, 2.0**10), check_every=1)
    else:
        wrapped = keras.optimizers.LossScaleOptimizer(inner, 2.0**10)
        optimizer = ddl.DistributedOptimizer(wrapped, check_every=1, backward_passes_per_step=2)
    net.compile(optimizer, "mse")
    net.fit(x, y[:24], batch_size=4, epochs=1, shuffle=False, verbose=0)
    return digest(net), int(net.optimizer.iterations), float(net.optimizer.dynamic_scale)


@pytest.mark.slow
@pytest.mark.parametrize("way, steps", [("outside", 5), ("inside", 5), ("passes", 5)])
def test_infinite_gradients_of_one_rank_are_skipped_by_all(way, steps):
    first, second = ranks.run(2, infinity, way, initialise=False)
    assert first == second and first[1:] == (steps, 2.0**9)


def passes():
    """Iterations, and ``global_step``, count every backward pass, as in Horovod; schedules go by them."""
    import keras

    import ddl_tensorflow as ddl

    rates = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.5])
    for wrap in (lambda function: function, tf.function):
        optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(rates), backward_passes_per_step=2, check_every=2)
        weight = keras.Variable([0.0])
        optimizer.build([weight])
        apply, seen = wrap(optimizer.apply), []
        for _ in range(4):
            apply([tf.ones([1])])
            seen.append((float(weight.numpy()[0]), int(optimizer.iterations)))
        assert seen == [(0.0, 1), (-2.0, 2), (-2.0, 3), (-3.0, 4)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.compat.v1.get_variable("weight", [1], initializer=tf.compat.v1.zeros_initializer())
        step = tf.compat.v1.train.get_or_create_global_step()
        plain = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        optimizer = ddl.DistributedOptimizer(plain, backward_passes_per_step=2, check_every=2)
        train = optimizer.minimize(tf.reduce_sum(weight), global_step=step)
        session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()])
        seen = []
        for _ in range(4):
            session.run(train)
            seen.append((float(session.run(weight)[0]), int(session.run(step))))
        assert seen == [(0.0, 1), (-2.0, 2), (-2.0, 3), (-4.0, 4)]


def test_every_backward_pass_is_counted():
    ranks.run(2, passes)


def differing():
    """A rank changes a weight by itself: all ranks raise the same, with the variable and what each has in it."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    rank = ddl.rank()
    x, y = data()

    class Spoils(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and rank == 1:
                kernel = self.model.layers[1].kernel
                kernel.assign(tf.tensor_scatter_nd_update(kernel.value, [[5, 0]], [99.0]))

    for how in ({}, {"run_eagerly": True}):
        net = model()
        # Without a learning rate, so that what is shown is what was assigned.
        net.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.0), check_every=2), "mse", **how)
        steps = []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, steps=steps: steps.append(batch))
        with pytest.raises(
            ddl.InvalidState,
            match=r"check: after step 4, .*1 of 4 variables.*dense.*/kernel"
            r".*element \[5, 0\].*on rank 0, 99\.0 on rank 1",
        ) as caught:
            net.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[Spoils(), count])
        assert steps == [0, 1, 2] and f"[rank {rank}/2" in str(caught.value)
        assert ddl.allreduce(tf.ones([1]), op=ddl.Sum).numpy()[0] == 2  # nothing else is broken
    mistakes(ddl, keras)


def mistakes(ddl, keras):
    for options, text in (
        ({"check": -1}, "check=-1"),
        ({"check_every": -1}, "check=-1"),
        ({"check": 1, "check_every": 2}, "two names for the same"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"op": ddl.Min}, "ddl.Average, ddl.Sum and ddl.Adasum"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=rf"\[rank ./2 host \S+\] .*{text}"):
            ddl.DistributedOptimizer(keras.optimizers.SGD(0.1), **options)
    with pytest.raises(ddl.InvalidArgument, match="not a builtins.int"):
        ddl.DistributedOptimizer(3)
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(0.1))
    for again in (optimizer, keras.optimizers.LossScaleOptimizer(optimizer)):
        with pytest.raises(ddl.InvalidArgument, match="distributed already"):
            ddl.DistributedOptimizer(again)
    with pytest.raises(ddl.InvalidArgument, match="2 gradients for 1 variables"):
        optimizer.apply([tf.ones([1])] * 2, [keras.Variable([1.0])])
    adasum = ddl.DistributedAdasumOptimizer(keras.optimizers.SGD(1.0))
    weight = keras.Variable([3.0, 4.0])
    adasum.apply_gradients([(tf.constant([1.0, 1.0]), weight)])
    assert weight.numpy().tolist() == [2.0, 3.0]
    layer = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
    layer.build((None, 1))
    from ddl_tensorflow.keras import PartialDistributedOptimizer

    local = PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=layer, check=1)
    local.apply_gradients([(tf.constant([[float(ddl.rank())]]), layer.kernel), (tf.ones([2]), weight)])
    assert layer.kernel.numpy() == -ddl.rank() / 2 and weight.numpy().tolist() == [1.0, 2.0]


@pytest.mark.slow
def test_weights_that_differ_are_named():
    ranks.run(2, differing, initialise=False)
