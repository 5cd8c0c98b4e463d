"""What goes wrong with gradients comes out of ``fit`` and of tapes as DDL's error, on all ranks; nothing hangs."""

from __future__ import annotations

import os

import numpy as np
import pytest
import ranks

from ddl import errors

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def small(units=3):
    import keras

    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])


def differ():
    """After each mistake: the text on all ranks, that what comes next is refused, too, and a new start."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    rank = ddl.rank()

    def again():
        with pytest.raises(errors.CollectiveMismatch):
            ddl.allreduce(tf.ones([2]))
        ddl.shutdown()
        ddl.init()
        assert ddl.allreduce(tf.ones([1]), op=ddl.Sum).numpy()[0] == ddl.size()

    model = small(units=3 + rank)
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(errors.CollectiveMismatch, match=r"gradients.*rank 0 submitted .*but rank 1 .*") as caught:
        model.fit(np.ones([8, 4], "f"), np.ones([8, 1], "f"), batch_size=4, verbose=0)
    assert f"[rank {rank}/2" in str(caught.value) and "shape 3x1" in str(caught.value)
    assert "shape 4x1" in str(caught.value)
    again()

    a, b = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([3, 2]))
    losses = {
        "no gradient of variable 1 of shape (3, 2)": lambda: tf.reduce_sum(a) + (tf.reduce_sum(b) if rank else 0.0),
        "sparse: variable 1 of shape (3, 2)": lambda: tf.reduce_sum(a) + tf.reduce_sum(tf.gather(b, 0) if rank else b),
        "no gradient of variable 0": lambda: tf.reduce_sum(b) + (0.0 if rank else tf.reduce_sum(a)),
    }
    for text, loss in losses.items():
        for run in (lambda function: function(), lambda function: tf.function(function)()):

            def step(loss=loss):
                with tf.GradientTape() as tape:
                    value = loss()
                # In buckets of their own: one rank may be waiting for what the other never comes to.
                got = ddl.DistributedGradientTape(tape, bucket_bytes=1).gradient(value, [a, b])
                return [tf.convert_to_tensor(gradient) for gradient in got if gradient is not None]

            with pytest.raises(errors.CollectiveMismatch) as caught:
                run(step)
            assert text in str(caught.value), caught.value
            again()


@pytest.mark.slow
@pytest.mark.faults
def test_ranks_with_different_gradients():
    ranks.run(2, differ, initialise=False)


def loses_a_rank():
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    model = small()
    model.compile(ddl.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                ranks.meet()
                if ddl.rank() == 1:
                    os._exit(7)

    with pytest.raises(errors.PeerLost, match=r"gradients.*lost rank 1") as caught:
        model.fit(np.ones([64, 4], "f"), np.ones([64, 1], "f"), batch_size=4, verbose=0, callbacks=[Dies()])
    assert isinstance(caught.value, tf.errors.OpError) and isinstance(caught.value, ConnectionError)
    return type(caught.value).__qualname__


@pytest.mark.slow
@pytest.mark.faults
def test_a_rank_that_dies_in_fit_is_named():
    """And nobody waits for the deadline, which would be another error."""
    first, died, third = ranks.run(3, loses_a_rank, initialise=False, may_die=[1])
    assert died == 7 and first == third == "PeerLost"
