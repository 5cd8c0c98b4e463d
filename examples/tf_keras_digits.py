"""Trains a small convolutional network on the UCI handwritten digits by Keras' ``fit``, on one rank or many.

    python examples/tf_keras_digits.py
    ddlrun -np 2 examples/tf_keras_digits.py

The 1797 real digits (8 x 8 pixels) ship inside scikit-learn, so nothing is downloaded. Lines that a script for one
machine would not have are marked (DDL). All ranks together do the same work whatever their number: every batch is
shared out among them, so N ranks take the very steps of one process, up to rounding.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ddl_tensorflow.keras as ddl

TEST_SHARE = 5  # every fifth digit is kept for the test
Digits = Tuple[np.ndarray, np.ndarray]


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--epochs", type=int, default=8, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, help="digits of all ranks in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate (%(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and order (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--timeline", metavar="FILE", help="write there what rank 0 waited for, but in the first epoch")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error(f"argument --epochs: {options.epochs} is not 2 or more: the first one is not measured")
    return options


def digits() -> Tuple[Digits, Digits]:
    """Return images and labels for training and for the test; which are which does not depend on the seed."""
    images, labels = load_digits(return_X_y=True)
    x = (images / 16.0).astype(np.float32).reshape(-1, 8, 8, 1)
    y = labels.astype(np.int32)
    test = np.arange(len(x)) % TEST_SHARE == 0
    return (x[~test], y[~test]), (x[test], y[test])


def batches(train: Digits, options: argparse.Namespace) -> tf.data.Dataset:
    """Return this rank's share of every batch: the order is another one in each epoch, and the same on all ranks."""
    dataset = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=options.seed)
    dataset = dataset.shard(ddl.size(), ddl.rank())  # (DDL)
    dataset = dataset.batch(options.batch_size // ddl.size(), drop_remainder=True).prefetch(2)
    # There is nothing here to tune, and TensorFlow's tuner takes up to 0.16 s to stop when an epoch has ended: on each
    # rank at other times, so that the ranks wait for one another.
    pipeline = tf.data.Options()
    pipeline.autotune.enabled = False
    return dataset.with_options(pipeline)


def network(width: int) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(4 * width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4 * width, activation="relu"),
            layers.Dense(10),
        ]
    )


class Clock:
    """Counts images from the second epoch on: in the first one TensorFlow traces, and looks for memory."""

    def __init__(self, timeline: Optional[str]) -> None:
        self._timeline, self._begin, self._seen = timeline, 0.0, 0

    def epoch_ends(self, images: int) -> None:
        if self._begin:
            self._seen += images
            return
        if self._timeline:
            ddl.start_timeline(self._timeline)
        self._begin = time.perf_counter()

    def stop(self) -> Dict[str, Any]:
        """Return the images in a second, and the seconds."""
        seconds = time.perf_counter() - self._begin
        ddl.stop_timeline()
        return {"images_per_s": self._seen / seconds, "seconds": seconds}


def report(options: argparse.Namespace, clock: Dict[str, Any], loss: float, right: int, of: int) -> None:
    """Print what came out, and write it to the file that was asked for; ``right`` digits of ``of`` are all ranks'."""
    if ddl.rank() == 0:
        print(f"training loss {loss:.4f}, test accuracy {right / of:.2%}, {clock['images_per_s']:.0f} images/s")
        if options.json:
            result = {"ranks": ddl.size(), "loss": loss, "accuracy": right / of, **clock}
            Path(options.json).write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    options = arguments("Train a small network on handwritten digits by Keras' fit, with DDL.")
    ddl.init()  # (DDL)
    keras.utils.set_random_seed(options.seed)  # the order of the digits depends on it: on all ranks the same
    train, (x, y) = digits()
    dataset = batches(train, options)

    model = network(options.width)
    optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(options.lr))  # (DDL)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    clock = Clock(options.timeline)
    images = len(dataset) * options.batch_size
    callbacks = [
        ddl.callbacks.BroadcastGlobalVariablesCallback(0),  # (DDL)
        ddl.callbacks.MetricAverageCallback(),  # (DDL)
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: clock.epoch_ends(images)),
    ]
    verbose = 2 if ddl.rank() == 0 else 0  # (DDL) one rank shows progress
    history = model.fit(dataset, epochs=options.epochs, callbacks=callbacks, verbose=verbose, shuffle=False)
    measured = clock.stop()

    own = slice(ddl.rank(), None, ddl.size())  # (DDL)
    right = int((model.predict(x[own], verbose=0).argmax(1) == y[own]).sum())
    right = int(ddl.allreduce(right, op=ddl.Sum))  # (DDL)
    report(options, measured, history.history["loss"][-1], right, len(y))


if __name__ == "__main__":
    main()
