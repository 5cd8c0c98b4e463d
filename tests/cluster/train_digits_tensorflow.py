"""Trains on the handwritten digits so that any number of ranks takes the very steps of one process: a loop, then fit.

Every batch of 64 is shared out; averaging the ranks' gradients gives that of the whole batch, up to rounding. Prints
the loss on all digits, the length of the weights' vector, and whether all ranks have the same bits.
"""

from __future__ import annotations

import zlib

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ddl_tensorflow as ddl
from ddl_tensorflow.keras import callbacks

BATCH = 64


def main() -> None:
    ddl.init()
    keras.utils.set_random_seed(1 + ddl.rank())  # other weights on each rank, until they are broadcast
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16.0).astype(np.float32), labels.astype(np.int32)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(96, activation="tanh"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.2, momentum=0.9)
    optimizer.build(model.trainable_variables)
    ddl.broadcast_variables(model.variables + optimizer.variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = ddl.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    batches = np.random.default_rng(3).permutation(len(x) // BATCH * BATCH).reshape(-1, BATCH)
    shares = batches[:, ddl.rank() :: ddl.size()]
    for share in shares:
        step(x[share], y[share])
    own = shares.reshape(-1)
    model.compile(ddl.DistributedOptimizer(optimizer, check=10), loss_of)
    hooks = [callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x[own], y[own], BATCH // ddl.size(), shuffle=False, callbacks=hooks, verbose=0)

    flat = np.concatenate([weights.ravel() for weights in model.get_weights()])
    same = len(set(ddl.allgather_object(zlib.crc32(flat.tobytes())))) == 1
    if ddl.rank() == 0:
        print(f"RESULT {ddl.size()} {float(loss_of(y, model(x))):.7f} {np.linalg.norm(flat):.7f} same={same}")


if __name__ == "__main__":
    main()
