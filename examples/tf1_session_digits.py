"""Trains on the digits as scripts of TensorFlow 1 do: a graph, an optimizer of ``tf.train`` and a monitored session.

    python examples/tf1_session_digits.py
    ddlrun -np 2 examples/tf1_session_digits.py

Data and options are those of tf_keras_digits.py; the network has no convolutions. Lines that a script for one machine
would not have are marked (DDL).
"""

from __future__ import annotations

from typing import Any, Iterator, Tuple

import numpy as np
import tensorflow.compat.v1 as tf
from tf_keras_digits import Clock, Digits, arguments, digits, report

import ddl_tensorflow as ddl


def shares(train: Digits, batch: int, generator: np.random.Generator) -> Iterator[Digits]:
    """Yield this rank's share of every batch of an epoch; the generator is the same on all ranks."""
    x, y = train
    order = generator.permutation(len(x))
    for start in range(0, len(x) - batch + 1, batch):
        own = order[start : start + batch][ddl.rank() :: ddl.size()]  # (DDL)
        yield x[own], y[own]


def layer(x: Any, width: int, name: str) -> Any:
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [int(x.shape[1]), width], initializer=tf.glorot_uniform_initializer())
        return x @ weights + tf.get_variable("bias", [width], initializer=tf.zeros_initializer())


def network(images: Any, width: int) -> Any:
    hidden = tf.nn.relu(layer(tf.reshape(images, [-1, 64]), 8 * width, "first"))
    return layer(tf.nn.relu(layer(hidden, 8 * width, "second")), 10, "last")


def graph(width: int, lr: float) -> Tuple[Any, ...]:
    """Build the graph; return its placeholders, the op that trains, the loss, and how many digits are recognised."""
    images, labels = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
    logits = network(images, width)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = tf.train.AdamOptimizer(lr)
    optimizer = ddl.DistributedOptimizer(optimizer)  # (DDL)
    train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.int32))
    return images, labels, train, loss, right


def main() -> None:
    options = arguments("Train a small network on handwritten digits in a session of TensorFlow 1, with DDL.")
    ddl.init()  # (DDL)
    tf.disable_eager_execution()
    tf.set_random_seed(options.seed + ddl.rank())  # other weights on each rank, until they are broadcast
    digits_for_training, (x, y) = digits()
    images, labels, train, loss, right = graph(options.width, options.lr)
    whole = tf.placeholder(tf.float32, [])
    mean_of = ddl.allreduce(whole)  # (DDL)
    sum_of = ddl.allreduce(right, op=ddl.Sum)  # (DDL)

    clock, generator = Clock(options.timeline), np.random.default_rng(options.seed)
    hooks = [ddl.BroadcastGlobalVariablesHook(0)]  # (DDL)
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        for epoch in range(options.epochs):
            losses = [
                session.run([train, loss], {images: a, labels: b})[1]
                for a, b in shares(digits_for_training, options.batch_size, generator)
            ]
            mean = float(session.run(mean_of, {whole: np.mean(losses)}))  # (DDL)
            clock.epoch_ends(len(losses) * options.batch_size)
            if ddl.rank() == 0:
                print(f"epoch {epoch + 1:2d}/{options.epochs}: training loss {mean:.4f}", flush=True)
        measured = clock.stop()
        own = slice(ddl.rank(), None, ddl.size())  # (DDL)
        recognised = int(session.run(sum_of, {images: x[own], labels: y[own]}))
    report(options, measured, mean, recognised, len(y))


if __name__ == "__main__":
    main()
