"""Every operation in Keras' ``fit``: in a ``train_step`` of one's own, as a graph and eagerly, and between epochs."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def results(ddl, own, weight, state):
    """Return what each operation makes of ``own``, which is as many times this rank's number as there are ranks."""
    rank, size = ddl.rank(), ddl.size()
    ddl.barrier()
    state.assign(float(rank))
    ddl.broadcast_variables([state], root_rank=1)
    with tf.GradientTape() as tape:
        loss = weight * float(rank + 1)
    answers = {
        "allreduce": ddl.allreduce(own, op=ddl.Sum),
        "grouped_allreduce": ddl.grouped_allreduce([own, own + 1.0], op=ddl.Sum)[1],
        "allgather": ddl.allgather(own),
        "grouped_allgather": ddl.grouped_allgather([own, own + 1.0])[1],
        "broadcast": ddl.broadcast(own, root_rank=1),
        "alltoall": ddl.alltoall(own),
        "alltoall with splits": ddl.alltoall(own, [1] * size)[0],
        "reducescatter": ddl.reducescatter(own, op=ddl.Sum),
        "grouped_reducescatter": ddl.grouped_reducescatter([own, own + 1.0], op=ddl.Sum)[1],
        "DistributedGradientTape": ddl.DistributedGradientTape(tape).gradient(loss, weight),
        "broadcast_variables": state.read_value(),
        "size_op": ddl.size_op(),
        "rank_op": ddl.rank_op(),
        "local_size_op": ddl.local_size_op(),
        "local_rank_op": ddl.local_rank_op(),
        "process_set_included_op": ddl.process_set_included_op(),
    }
    return {name: tf.reduce_sum(tf.cast(tensor, tf.float32)) for name, tensor in answers.items()}


def expected(ddl):
    rank, size = ddl.rank(), ddl.size()
    total = size * (size - 1) / 2
    return {
        "allreduce": size * total,
        "grouped_allreduce": size * (total + size),
        "allgather": size * total,
        "grouped_allgather": size * (total + size),
        "broadcast": size,
        "alltoall": total,
        "alltoall with splits": total,
        "reducescatter": total,
        "grouped_reducescatter": total + size,
        "DistributedGradientTape": (size + 1) / 2,
        "broadcast_variables": 1,
        "size_op": size,
        "rank_op": rank,
        "local_size_op": ddl.local_size(),
        "local_rank_op": ddl.local_rank(),
        "process_set_included_op": 1,
    }


def everything():
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    rank, size = ddl.rank(), ddl.size()

    class Collects(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.factor, self.state = tf.Variable(2.0), tf.Variable(0.0, trainable=False)

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            return results(ddl, data[0], self.factor, self.state)

    between = []

    def exchange(epoch, logs):
        between.append([ddl.broadcast_object(rank, root_rank=1), ddl.allgather_object(rank)])
        ddl.join()

    after = keras.callbacks.LambdaCallback(on_epoch_end=exchange)
    for eagerly in (False, True):
        model = Collects()
        model.compile("sgd", "mse", run_eagerly=eagerly)
        batches = tf.data.Dataset.from_tensors((np.full(size, rank, np.float32), np.zeros(size, np.float32))).repeat(3)
        seen = model.fit(batches, epochs=2, verbose=0, callbacks=[after]).history
        wanted = expected(ddl)
        assert {name: set(values) for name, values in seen.items()} == {name: {value} for name, value in wanted.items()}
    assert between == [[1, list(range(size))]] * 4


def test_verbs_in_fit():
    ranks.run(2, everything)
