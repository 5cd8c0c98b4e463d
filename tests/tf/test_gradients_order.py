"""Gradients are sent while the backward pass goes on, in whatever order TensorFlow makes them on each rank."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def late(delay):
    """Return the identity whose gradient comes after ``delay()``, which needs no processor."""

    @tf.custom_gradient
    def identity(x):
        def gradient(upstream):
            def wait(array):
                delay()
                return array

            waited = tf.numpy_function(wait, [upstream], tf.float32)
            waited.set_shape(upstream.shape)
            return waited

        return tf.identity(x), gradient

    return identity


def sent_meanwhile(folder):
    """The first layer's gradient does not come before the second's average is there."""
    import ddl_tensorflow as ddl

    ddl.init()
    first, second = tf.Variable(tf.ones([200, 200])), tf.Variable(tf.ones([200, 200]))
    path = Path(folder, "timeline.json")  # rank 0 writes it, each event at once
    early = []

    def averaged():
        return [event["args"]["name"] for event in events_in(path) if event["name"] == "thread_name"]

    def until_the_other_is_averaged():
        deadline = time.monotonic() + 60
        while path.exists() and not averaged():
            assert time.monotonic() < deadline, "nothing is sent while the backward pass goes on"
            time.sleep(0.005)
        early[:] = averaged() if path.exists() else []

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((late(until_the_other_is_averaged)(x @ first)) @ second)
        return ddl.DistributedGradientTape(tape, bucket_bytes=1).gradient(loss, [first, second])

    for _ in range(2):  # the first traces it, the second compares weights
        step(tf.ones([1, 200]))
    ranks.meet()
    ddl.start_timeline(str(path))
    ranks.meet()
    step(tf.ones([1, 200]))
    ddl.stop_timeline()
    buckets = [f"gradients.step/ddl_gradients.bucket.{number}" for number in (0, 1)]
    assert early == buckets[:1], early
    if ddl.rank() == 0:
        assert averaged() == buckets


def events_in(path):
    """Return what a timeline has by now."""
    lines = path.read_text().splitlines(keepends=True)[1:]
    return [json.loads(line.rstrip(",\n")) for line in lines if line.endswith(",\n")]


@pytest.mark.slow
def test_a_bucket_is_sent_while_the_backward_pass_goes_on(tmp_path):
    # A thread for what waits: as an op that computes takes one.
    ranks.run(2, sent_meanwhile, str(tmp_path), initialise=False, env={"TF_NUM_INTEROP_THREADS": "3"})


def any_order():
    """Two branches, of which one is late on each rank, another one on each: with few threads, and in many steps."""
    import ddl_tensorflow as ddl

    ddl.init()
    rank, size = ddl.rank(), ddl.size()
    variables = [tf.Variable(tf.ones([50, 50]) * (i + 1)) for i in range(4)]
    delays = [(lambda: time.sleep(0.03)) if i % size == rank else (lambda: None) for i in range(4)]

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            # Each has its own path to the loss, so TensorFlow is free to make their gradients in any order.
            parts = [late(delays[i])(v * x * (i + 1)) for i, v in enumerate(variables)]
            loss = tf.reduce_sum(tf.add_n(parts))
        return ddl.DistributedGradientTape(tape, bucket_bytes=1).gradient(loss, variables)

    for number in range(3):
        got = step(tf.constant(float(rank + number)))
        for i, result in enumerate(got):
            assert np.array_equal(result, np.full([50, 50], (i + 1) * (number + (size - 1) / 2))), (number, i)


@pytest.mark.few(1)
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_make_gradients_in_different_orders(size):
    ranks.run(size, any_order, initialise=False)


def said_meanwhile(folder):
    """With one thread for all ops: rank 1 sends nothing before rank 0 has run ops that stand beside its own."""
    import ddl_tensorflow as ddl

    ddl.init()
    rank = ddl.rank()

    def says(path):
        Path(path.decode()).touch()
        return np.float32(1)

    def hears(path):
        deadline = time.monotonic() + 60
        while not all(os.path.exists(f"{path.decode()}.{word}") for word in range(4)):
            assert time.monotonic() < deadline, "rank 0 runs nothing while its operation waits"
            time.sleep(0.005)
        return np.float32(1)

    def word(path, number):
        return tf.numpy_function(says, [path + f".{number}"], tf.float32, stateful=False) if rank == 0 else 1.0

    @tf.function
    def step(x, path):
        if rank == 1:
            x *= tf.numpy_function(hears, [path], tf.float32, stateful=False)
            x.set_shape([4])
        # TensorFlow takes those that are ready in an order of its own: so some stand on either side.
        product = word(path, 0) * word(path, 1)
        mean = ddl.allreduce(x, op=ddl.Sum)
        return mean * product * word(path, 2) * word(path, 3)

    for number in range(10):
        total = step(tf.fill([4], float(rank + number)), tf.constant(f"{folder}/{number}"))
        assert np.array_equal(total, np.full(4, 2.0 * number + 1)), total


def test_an_op_that_waits_for_others_holds_up_none(tmp_path):
    ranks.run(2, said_meanwhile, str(tmp_path), initialise=False)
