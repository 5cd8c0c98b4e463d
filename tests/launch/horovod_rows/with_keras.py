"""An elastic script for Horovod with ``fit`` of Keras: but for the import of ``hvd``, nothing in it knows DDL."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from row import BATCHES, Row

import ddl_tensorflow.keras as hvd

hvd.init()
start_rank, row = hvd.rank(), Row()
keras.utils.set_random_seed(start_rank)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
data = tf.data.Dataset.from_tensors((tf.random.normal((2, 4)), tf.ones((2, 1)))).repeat()


class FollowRow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        row.begin_batch(state, hvd.size)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        row.end_batch(state, hvd.size())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if hvd.rank() == 0:
            row.end_epoch(state, start_rank, hvd.size())


@hvd.elastic.run
def train(state: Any) -> None:
    state.rendezvous += 1
    while state.epoch < row.epochs:
        callbacks = [
            hvd.elastic.UpdateBatchStateCallback(state),
            FollowRow(),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state),
        ]
        part = {"steps_per_epoch": BATCHES - state.batch, "initial_epoch": state.epoch, "epochs": state.epoch + 1}
        state.model.fit(data, callbacks=callbacks, verbose=0, **part)


state = hvd.elastic.KerasState(model, epoch=0, batch=0, rendezvous=0)
train(state)
assert int(model.optimizer.iterations) == row.epochs * BATCHES
