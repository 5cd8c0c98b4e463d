"""An elastic script for Horovod with TensorFlow: but for the import of ``hvd``, nothing in it knows DDL."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from row import BATCHES, Row

import ddl_tensorflow as hvd

hvd.init()
start_rank, row = hvd.rank(), Row()
tf.random.set_seed(start_rank)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())


@tf.function
def step(x: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - 1.0))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


@hvd.elastic.run
def train(state: Any) -> None:
    state.rendezvous += 1
    while state.epoch < row.epochs:
        while state.batch < BATCHES:
            row.begin_batch(state, hvd.size)
            step(tf.random.normal((2, 4)))
            state.batch += 1
            row.end_batch(state, hvd.size())
            state.commit()
        if hvd.rank() == 0:
            row.end_epoch(state, start_rank, hvd.size())
        state.epoch += 1
        state.batch = 0
        state.commit()


state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, batch=0, rendezvous=0)
state.register_reset_callbacks([lambda: optimizer.learning_rate.assign(0.01 * hvd.size())])
train(state)
weights = tf.concat([tf.reshape(variable, [1, -1]) for variable in model.trainable_variables], 1)
gathered = hvd.allgather(weights)
assert bool(tf.reduce_all(gathered == gathered[:1]))
