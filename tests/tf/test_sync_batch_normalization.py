"""``SyncBatchNormalization`` on several ranks is ``BatchNormalization`` in one process that has the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.processes

#: Rows of each rank, shape of a row, arguments of the layer, whether there is a mask.
CASES = {
    "rows": ((4, 4), (3,), {}, False),
    "pictures": ((2, 2), (5, 4, 3), {"momentum": 0.5, "epsilon": 1e-2}, False),
    "axis": ((3, 3), (2, 5), {"axis": 1, "scale": False}, False),
    "unequal": ((1, 6), (3,), {"center": False}, False),
    "none": ((0, 5), (3,), {}, False),
    "mask": ((3, 2), (4, 3), {}, True),
    "half": ((4, 4), (3,), {"dtype": "mixed_float16"}, False),
    "wide": ((4, 4), (3,), {"dtype": "float64"}, False),
}


def run(layer, x, mask, upstream, compiled):
    """Return outputs, gradients of inputs and of weights, of the sum of ``upstream`` * outputs; and statistics."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, training=True, mask=mask)
            loss = tf.reduce_sum(tf.cast(y, x.dtype) * upstream)
        return y, tape.gradient(loss, [x, *[v.value for v in layer.trainable_variables]])

    y, gradients = (tf.function(step) if compiled else step)(x)
    return [result.numpy() for result in (y, *gradients)], [v.numpy() for v in layer.non_trainable_variables]


def compares():
    import ddl_tensorflow as ddl

    ddl.init()
    rank = ddl.rank()
    for name, (rows, shape, arguments, masked) in CASES.items():
        random = np.random.default_rng(len(name))
        dtype = "float64" if name == "wide" else "float32"
        x = (3.0 + 2.0 * random.normal(size=(sum(rows), *shape))).astype(dtype)
        upstream = random.normal(size=x.shape).astype(dtype)
        mask = random.random(size=x.shape[:-1]) < 0.6 if masked else None
        own = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
        part = None if mask is None else tf.constant(mask[own])
        for compiled in (False, True):
            whole, layer = keras.layers.BatchNormalization(**arguments), ddl.SyncBatchNormalization(**arguments)
            for norm in (whole, layer):
                norm.build(x.shape)
            (y, to_x, *to_weights), statistics = run(layer, tf.constant(x[own]), part, upstream[own], compiled)
            (all_y, to_all, *to_all_weights), expected = run(whole, tf.constant(x), mask, upstream, compiled)
            near = {"rtol": 2e-3, "atol": 2e-3} if name == "half" else {"rtol": 1e-4, "atol": 1e-5}
            assert y.dtype == all_y.dtype, name
            np.testing.assert_allclose(y, all_y[own], err_msg=name, **near)
            np.testing.assert_allclose(to_x, to_all[own], err_msg=name, **near)
            for gradient, other in zip(to_weights, to_all_weights):
                np.testing.assert_allclose(ddl.allreduce(gradient, op=ddl.Sum), other, err_msg=name, **near)
            for value, other in zip(statistics, expected):
                np.testing.assert_allclose(value, other, err_msg=name, **near)
                assert len(set(ddl.allgather(value[None]).numpy()[:, 0].tolist())) == 1, "the same bits on every rank"
            assert np.allclose(layer(x), whole(x), **near)  # nothing is sent: ranks could do this alone


def in_models(folder):
    """In fit, with rounding of large means, saved, loaded with and without the layer's class; what it refuses."""
    import ddl_tensorflow.keras as ddl
    from ddl_tensorflow import SyncBatchNormalization

    with pytest.raises(ddl.InvalidState, match="init"):
        SyncBatchNormalization()(tf.ones([2, 3]), training=True)
    ddl.init()
    rank = ddl.rank()
    x = np.random.default_rng(rank).normal(size=(16, 4)).astype(np.float32) + 1000.0
    model = keras.Sequential([keras.layers.Input((4,)), SyncBatchNormalization(momentum=0.0), keras.layers.Dense(1)])
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile="auto")
    start = [ddl.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, x[:, 0], batch_size=16, epochs=2, verbose=0, callbacks=start)
    weights = ddl.allgather(np.concatenate([np.ravel(weight) for weight in model.get_weights()])[None]).numpy()
    assert (weights == weights[0]).all()
    both = ddl.allgather(x).numpy().astype(np.float64)
    np.testing.assert_allclose(model.layers[0].moving_variance, both.var(0), rtol=1e-3)
    path = f"{folder}/model-{rank}.keras"
    model.save(path)
    again = keras.models.load_model(path)
    assert isinstance(again.layers[0], SyncBatchNormalization) and again.layers[0].momentum == 0.0
    name = "ddl_tensorflow>SyncBatchNormalization"
    del keras.saving.get_custom_objects()[name]  # as it is without DDL
    ordinary = type("SyncBatchNormalization", (keras.layers.BatchNormalization,), {})
    plain = keras.models.load_model(path, custom_objects={name: ordinary})
    assert type(plain.layers[0]) is ordinary
    for loaded in (again, plain):
        assert np.array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    for name in ("fused", "renorm", "synchronized"):
        with pytest.raises(ddl.InvalidArgument, match=f"{name}=True is not possible"):
            SyncBatchNormalization(**{name: True})
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)


@pytest.mark.slow
def test_it_is_batch_normalization_of_the_whole():
    ranks.run(2, compares, initialise=False)


@pytest.mark.slow
def test_in_models(tmp_path):
    ranks.run(2, in_models, str(tmp_path), initialise=False)
