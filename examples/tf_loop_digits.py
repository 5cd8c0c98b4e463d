"""Trains on the digits by a loop of one's own: a ``tf.GradientTape`` inside a ``tf.function``.

    python examples/tf_loop_digits.py
    ddlrun -np 2 examples/tf_loop_digits.py

Data, network and options are those of tf_keras_digits.py. Lines that a script for one machine would not have are
marked (DDL).
"""

from __future__ import annotations

import keras
import tensorflow as tf
from tf_keras_digits import Clock, arguments, batches, digits, network, report

import ddl_tensorflow as ddl


def main() -> None:
    options = arguments("Train a small network on handwritten digits by a loop, with DDL.")
    ddl.init()  # (DDL)
    keras.utils.set_random_seed(options.seed)  # the order of the digits depends on it: on all ranks the same
    train, (x, y) = digits()
    dataset = batches(train, options)

    model = network(options.width)
    optimizer = keras.optimizers.Adam(options.lr)
    optimizer.build(model.trainable_variables)
    ddl.broadcast_variables(model.variables + optimizer.variables, root_rank=0)  # (DDL)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = ddl.DistributedGradientTape(tape)  # (DDL)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    clock = Clock(options.timeline)
    for epoch in range(options.epochs):
        total = 0.0
        for images, labels in dataset:
            total += step(images, labels)
        mean = float(ddl.allreduce(total / len(dataset)))  # (DDL)
        clock.epoch_ends(len(dataset) * options.batch_size)
        if ddl.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{options.epochs}: training loss {mean:.4f}", flush=True)
    measured = clock.stop()

    own = slice(ddl.rank(), None, ddl.size())  # (DDL)
    right = tf.reduce_sum(tf.cast(tf.argmax(model(x[own]), 1) == y[own], tf.int32))
    right = int(ddl.allreduce(right, op=ddl.Sum))  # (DDL)
    report(options, measured, mean, right, len(y))


if __name__ == "__main__":
    main()
