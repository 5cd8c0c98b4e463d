"""Keras' ``fit`` on two ranks: the same beginning, the same weights and slots at the end, averages, checkpoints.

Every rank has other data, other initial weights and other seeds, so that nothing is the same by chance.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import ranks
from said import Said

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.processes


def data(rank, rows=32):
    random = np.random.default_rng(rank)
    x = random.normal(size=(rows, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int32)


def network(ddl, optimizer=None, seed=0, dropout=0.3, policy="float32"):
    """A model whose initial weights differ by rank."""
    keras.utils.set_random_seed(100 * seed + ddl.rank())
    keras.backend.clear_session()  # layers have the same names however many models there were
    keras.config.set_dtype_policy(policy)
    layers = [keras.layers.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dropout(dropout), keras.layers.Dense(2)])
    if optimizer is None:
        optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(0.01))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def values(model):
    """All that training has made: weights, statistics, slots, states of random generators."""
    return [keras.ops.convert_to_numpy(v).copy() for v in [*model.variables, *model.optimizer.variables]]


def same_everywhere(arrays):
    import ddl

    bits = [[a.tobytes() for a in of_rank] for of_rank in ddl.world().allgather_object([np.asarray(a) for a in arrays])]
    return all(of_rank == bits[0] for of_rank in bits)


def trains(folder):
    import ddl_tensorflow.keras as ddl

    ddl.init()
    rank = ddl.rank()
    x, y = data(rank)
    model = network(ddl)
    assert not same_everywhere(values(model))
    path = f"{folder}/best.keras"

    def callbacks(filepath=path):
        return [
            ddl.callbacks.BroadcastGlobalVariablesCallback(0),
            ddl.callbacks.MetricAverageCallback(),
            ddl.callbacks.BestModelCheckpoint(monitor="loss", filepath=filepath),
        ]

    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks()).history
    assert same_everywhere(values(model)) and "moving_mean" in str([v.path for v in model.variables])
    assert same_everywhere([np.array(history[name]) for name in sorted(history)])
    assert len(model.optimizer.variables) > 2 and model.optimizer.iterations.numpy() == 8
    ddl.allreduce(0.0)  # rank 0 has written the file
    resumes(ddl, path, callbacks, model)
    stops(ddl, x, y)
    from_files(ddl, x, y)
    partly(ddl, x, y)
    in_16_bits(ddl, x, y)
    return sorted(history)


def resumes(ddl, path, callbacks, before):
    """The job is cut and goes on from the file: only rank 0 has read it, the others have begun anew."""
    rank = ddl.rank()
    x, y = data(rank)
    model = ddl.load_model(path) if rank == 0 else network(ddl, seed=7)
    assert model.optimizer.__class__ is keras.optimizers.Adam and model.compiled
    if rank == 0:
        pairs = list(zip([*model.weights, *model.optimizer.variables], [*before.weights, *before.optimizer.variables]))
        assert len(pairs) > 20 and all(np.array_equal(variable.numpy(), other.numpy()) for variable, other in pairs)
    model.fit(x, y, batch_size=8, initial_epoch=2, epochs=3, verbose=0, callbacks=callbacks(f"{path}.2.keras"))
    assert same_everywhere(values(model)) and model.optimizer.iterations.numpy() == 12


def stops(ddl, x, y):
    """Ranks whose metrics differ stop after the same epoch, with the same rate."""
    model = network(ddl, ddl.DistributedOptimizer(keras.optimizers.SGD(1e-7 if ddl.rank() else 1e-6, momentum=0.9)))
    callbacks = [
        ddl.callbacks.BroadcastGlobalVariablesCallback(1),
        ddl.callbacks.MetricAverageCallback(),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=1.0),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1.0, factor=0.5),
    ]
    halves = (x[:16], y[:16]), (x[16:], y[16:])
    history = model.fit(*halves[0], batch_size=8, epochs=9, verbose=0, validation_data=halves[1], callbacks=callbacks)
    assert len(history.history["val_loss"]) == 3 and same_everywhere([np.array(history.history["val_accuracy"])])
    assert same_everywhere(values(model))
    assert model.optimizer.learning_rate.numpy() == np.float32(1e-7) * np.float32(0.25)
    alone = model.evaluate(x, y, verbose=0, return_dict=True, callbacks=callbacks[:2])
    mean = ddl.average_metrics(alone, weight=len(x))
    assert not same_everywhere([np.array(alone["loss"])]) and same_everywhere([np.array(mean["loss"])])
    wrong = [keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(model, "stop_training", ddl.rank() == 1))]
    with pytest.raises(ddl.InvalidArgument, match=r"stopped on ranks \[1\] only.*put MetricAverageCallback before"):
        model.fit(x, y, verbose=0, callbacks=[*wrong, ddl.callbacks.MetricAverageCallback()])


def from_files(ddl, x, y):
    """From tf.data, of a model that has no weights before its first batch, in steps of several batches."""
    keras.utils.set_random_seed(ddl.rank())
    keras.backend.clear_session()
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(ddl.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", steps_per_execution=2)
    batches = tf.data.Dataset.from_tensor_slices((x, y.astype(np.float32))).shuffle(32, seed=ddl.rank()).batch(8)
    model.fit(batches, epochs=2, verbose=0, callbacks=[ddl.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert same_everywhere(values(model)) and len(values(model)) > 8


def in_16_bits(ddl, x, y):
    """Keras wraps the optimizer once more; with infinite gradients on one rank, all skip the step. Eagerly, too."""
    callbacks = [
        ddl.callbacks.BroadcastGlobalVariablesCallback(0),
        ddl.callbacks.LearningRateWarmupCallback(0.1, 1),
        ddl.callbacks.MetricAverageCallback(),
    ]
    x = np.full_like(x, np.inf) if ddl.rank() else x
    for eagerly in (False, True):
        optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        model = network(ddl, optimizer, policy="mixed_float16")
        model.run_eagerly = eagerly
        before = model.layers[0].kernel.numpy()
        model.fit(x, y, batch_size=16, verbose=0, callbacks=callbacks)
        assert same_everywhere(values(model)) and isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert model.optimizer.inner_optimizer.iterations.numpy() == 0
        assert ddl.rank() != 0 or np.array_equal(before, model.layers[0].kernel.numpy())


def partly(ddl, x, y):
    """A layer of each rank's own; the slots of the others are the same everywhere."""
    model = network(ddl, "sgd", dropout=0.0)
    last = model.layers[-1]
    own = ddl.PartialDistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), local_layers=last)
    model.compile(own, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0, callbacks=[ddl.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert same_everywhere([v.numpy() for v in model.layers[0].weights])
    assert not same_everywhere([last.kernel.numpy()]) and not same_everywhere([last.bias.numpy()])
    for wrong, match in ((3, "is no layer"), (keras.layers.Dense(1), "has no variables yet")):
        with pytest.raises(ddl.InvalidArgument, match=match):
            ddl.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=[wrong])


def loses_a_rank():
    """What fit raises then is DDL's error, by which elastic.run restores the last commit."""
    import ddl_tensorflow.keras as ddl

    ddl.init()
    model = network(ddl)
    state = ddl.elastic.KerasState(model, epoch=0)
    x, y = data(ddl.rank())

    class Dies(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if ddl.rank() == 1 and state.epoch == 1 and batch == 2:
                os._exit(7)

    callbacks = [ddl.elastic.UpdateEpochStateCallback(state), ddl.elastic.CommitStateCallback(state, 1), Dies()]
    train = ddl.elastic.run(lambda state: model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=callbacks))
    with pytest.raises(ddl.HorovodInternalError, match="(?s)lost rank 1 .*state is that of the last commit") as caught:
        train(state)
    assert state.epoch == 1 and model.optimizer.iterations.numpy() == 6
    return type(caught.value).__name__


@pytest.mark.slow
@pytest.mark.faults
def test_a_rank_that_dies_in_fit_is_named():
    assert ranks.run(2, loses_a_rank, initialise=False, may_die=[1]) == ["PeerLost", 7]


@pytest.mark.slow
def test_fit(tmp_path):
    for names in ranks.run(2, trains, str(tmp_path), initialise=False):
        assert names == ["accuracy", "loss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.keras", "best.keras.2.keras"]


def begins():
    """What ranks may not have different is found when fit begins, on all of them, and nothing is harmed."""
    import ddl_tensorflow.keras as ddl

    ddl.init()
    rank = ddl.rank()
    x, y = data(rank)
    start = ddl.callbacks.BroadcastGlobalVariablesCallback

    def refused(match, model, callback=None):
        with pytest.raises(ddl.InvalidArgument, match=match) as caught:
            model.fit(x, y, verbose=0, callbacks=[callback or start(0)])
        assert f"[rank {rank}/2 host " in str(caught.value)

    refused("on rank 0, the model is compiled with Keras' own Adam.*DistributedOptimizer", network(ddl, "adam"))
    plain = keras.optimizers.Adam(0.01)
    refused("on rank 1, the model is compiled with Keras' own", network(ddl, plain if rank else None))
    odd = ddl.DistributedOptimizer(keras.optimizers.SGD(0.01)) if rank else None
    refused("on rank 0 there is the optimizer Adam, .*; on rank 1 the optimizer SGD", network(ddl, odd))
    refused("root_rank=2 is no rank", network(ddl), start(2))
    refused("on rank 0 there is root_rank=0; on rank 1 root_rank=1", network(ddl), start(rank))
    refused(r"0 of the model/dense/kernel: float32 of shape \(6, 3\); on rank 1 .* \(6, 4\)", another_model(ddl, rank))
    kernel = r"on rank 0 there is variable 0 of the model/dense/kernel.*; on rank 1 variable 0 of the model/mine/kernel"
    refused(kernel, another_model(ddl, 0, ["dense", "mine"][rank]))
    compiled = network(ddl)
    compiled.jit_compile = True
    refused("jit_compile=True. XLA cannot compile .* pass jit_compile=False", compiled)
    compiled.make_train_function(force=True)
    with pytest.raises(ddl.InvalidArgument, match="XLA cannot compile .* pass jit_compile=False"):
        compiled.fit(x, y, verbose=0)
    automatic(ddl, x, y)
    custom_step(ddl, x, y)


def another_model(ddl, more, name="dense"):
    keras.backend.clear_session()
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3 + more, name=name)])
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    return model


def automatic(ddl, x, y):
    """Where there is a GPU, Keras' "auto" means XLA: we choose otherwise, and say so once."""
    model = network(ddl)
    model._resolve_auto_jit_compile = lambda: True
    handler = Said()
    for _ in range(2):
        model.jit_compile = True
        model.make_train_function(force=True)
        model.fit(x, y, verbose=0, callbacks=[ddl.callbacks.BroadcastGlobalVariablesCallback(0)])
    handler.close()
    assert model.jit_compile is False and len([text for text in handler.texts if "jit_compile=False" in text]) == 1
    assert same_everywhere(values(model))


class Own(keras.Model):
    """A training step of one's own, with a plain optimizer: it may average what it likes."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.own = self.add_weight(shape=(), name="own", trainable=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, pair):
        import ddl_tensorflow as ddl

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(pair[0])[:, 0] - tf.cast(pair[1], tf.float32)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([ddl.allreduce(g) for g in gradients], self.trainable_variables)
        return {"loss": loss}


def custom_step(ddl, x, y):
    keras.backend.clear_session()
    model = Own()
    model(x[:1])
    model.own.assign(ddl.rank())
    model.compile("sgd")
    start = ddl.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[model.own])
    model.fit(x, y, verbose=0, callbacks=[start])
    assert same_everywhere([v.numpy() for v in model.dense.variables]) and model.own.numpy() == ddl.rank()
    start.register_local_var(model.dense.bias)
    model.dense.bias.assign([float(ddl.rank())])
    start.set_model(model)
    start.on_train_begin()
    assert model.dense.bias.numpy() == [ddl.rank()]


@pytest.mark.slow
def test_what_differs_is_named():
    ranks.run(2, begins, initialise=False)


def in_xla():
    """The op inside of XLA is refused by name, whether its function was traced for XLA or before."""
    import ddl_tensorflow as ddl

    ddl.init()
    wanted = "XLA cannot compile a collective of DDL's: leave out jit_compile=True"
    for verb in (ddl.allreduce, ddl.allgather, ddl.alltoall, ddl.reducescatter, lambda t: ddl.broadcast(t, 0)):
        with pytest.raises(ddl.InvalidArgument, match=wanted):
            tf.function(verb, jit_compile=True)(tf.ones([2]))
    with pytest.raises(ddl.InvalidArgument, match=wanted):
        tf.function(lambda: ddl.barrier(), jit_compile=True)()
    inner = tf.function(lambda t: ddl.allreduce(t))
    assert inner(tf.ones([2])).numpy().tolist() == [1.0, 1.0]
    with pytest.raises(ddl.InvalidArgument, match=wanted):
        tf.function(lambda t: inner(t) + 1.0, jit_compile=True)(tf.ones([2]))
    concrete = inner.get_concrete_function(tf.TensorSpec([2]))
    with pytest.raises(ddl.InvalidArgument, match=wanted) as caught:
        tf.function(lambda t: concrete(t) + 1.0, jit_compile=True)(tf.ones([2]))
    assert isinstance(caught.value, tf.errors.InvalidArgumentError) and "DdlCall" in str(caught.value)
    with pytest.raises(tf.errors.InvalidArgumentError) as other:  # those of others are left alone
        tf.reshape(tf.ones([3]), [2])
    assert not isinstance(other.value, ddl.Error)
    beside = tf.function(lambda t: tf.function(lambda u: u * 2, jit_compile=True)(ddl.allreduce(t)))
    assert beside(tf.ones([2])).numpy().tolist() == [2.0, 2.0]
    with contextlib.suppress(ddl.InvalidArgument):
        raise ddl.InvalidArgument("an ordinary one can still be made")


def test_inside_of_xla():
    ranks.run(1, in_xla, initialise=False)
