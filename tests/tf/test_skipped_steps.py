"""A rank that leaves out a step, or a part of one: all ranks hear of it, or have the same weights; nothing diverges.

And infinite gradients on one rank: all ranks skip that step, whoever looks for them.
"""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest
import ranks
from negotiation.deadlines import expire

from ddl import errors

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def everywhere(ddl, *variables):
    """Whether the ranks have the same bits in ``variables``."""
    bits = ddl.allgather_object([np.array(variable).tobytes() for variable in variables])
    return all(of_rank == bits[0] for of_rank in bits)


class Fails:
    """The identity; its gradient raises on rank 1 in the third step, after other buckets have been sent."""

    def __init__(self, ddl):
        self.ddl, self.calls = ddl, 0

    def __call__(self, x):
        def gradient(upstream):
            (same,) = tf.numpy_function(self._check, [upstream], [tf.float32])
            return tf.ensure_shape(same, upstream.shape)

        return tf.custom_gradient(lambda y: (tf.identity(y), gradient))(x)

    def _check(self, array):
        self.calls += 1
        if self.ddl.rank() == 1 and self.calls == 3:
            time.sleep(0.3)  # meanwhile the other bucket is sent
            raise ValueError("a bad batch")
        return array


def in_the_middle(kind):
    """Rank 1 catches the exception and goes on: its next bucket must not be averaged with one of another step."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    first, last = keras.Variable([[1.0, 2.0], [3.0, 4.0]]), keras.Variable([1.0, 2.0, 3.0])
    fails = Fails(ddl)
    optimizer = keras.optimizers.SGD(0.1)
    if kind == "optimizer":
        optimizer = ddl.DistributedOptimizer(optimizer, bucket_bytes=1)
    optimizer.build([first, last])

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            rows = fails(first.value)
            loss = x * (tf.reduce_sum(tf.gather(rows, [0]) if kind == "sparse" else rows) + tf.reduce_sum(last.value))
        if kind != "optimizer":
            tape = ddl.DistributedGradientTape(tape, bucket_bytes=1)
        optimizer.apply(tape.gradient(loss, [first.value, last.value]), [first, last])

    caught = []
    for number in range(5):
        try:
            step(tf.constant(float(number + ddl.rank())))
        except errors.Error as error:
            return type(error).__name__, str(error)
        except tf.errors.OpError as error:
            caught.append(str(error))
    raise AssertionError(f"ranks went on; caught {caught}; the same weights: {everywhere(ddl, first, last)}")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["tape", "sparse", "optimizer"])
def test_an_exception_in_the_middle_of_a_step(kind):
    for rank, (name, text) in enumerate(ranks.run(2, in_the_middle, kind, initialise=False)):
        assert name == "CollectiveMismatch" and text.startswith(f"[rank {rank}/2"), text
        # TensorFlow may have counted the step before it failed, or not.
        match = re.search(r"rank 0 submitted .*step (\d+) \(modulo 16\).* but rank 1 .*step (\d+) \(modulo 16\)", text)
        assert match and sorted(match.groups()) == ["2", "3"], text


def after_averaging():
    """Rank 1 fails when the averages have come: the others have made this step, and it has not."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    calls = []

    def constraint(value):
        calls.append(value)
        if ddl.rank() == 1 and len(calls) == 2:
            raise ValueError("not enough memory, say")
        return value

    weight = keras.Variable([1.0, 2.0])
    weight.constraint = constraint
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(0.1))
    for _ in range(4):
        try:
            optimizer.apply([tf.ones([2])], [weight])
        except errors.Error as error:
            return type(error).__name__, str(error)
        except ValueError:
            continue
    raise AssertionError(f"ranks went on; the same weights: {everywhere(ddl, weight)}")


def test_an_exception_while_variables_are_changed():
    for name, text in ranks.run(2, after_averaging, initialise=False):
        assert name == "CollectiveMismatch" and "step 2 (modulo 16)" in text and "step 1 (modulo 16)" in text, text


def left_out():
    """Rank 1 leaves out a whole step: the next one takes its place; who waits for more in the end is told of it."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    rank = ddl.rank()
    weight = keras.Variable([1.0, 2.0])
    optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(0.1))
    in_vain = threading.Thread(target=expire, args=(ddl.global_process_set.negotiator,), daemon=True)
    for number in range(4):
        if rank == 1 and number == 1:
            continue
        if rank == 0 and number == 3:
            in_vain.start()
        try:
            optimizer.apply([tf.fill([2], float(number + rank))], [weight])
        except errors.CommunicatorError as error:
            return number, str(error)
    if rank == 0:
        raise AssertionError("four steps with three")
    in_vain.start()
    with pytest.raises(errors.Error) as caught:
        ddl.allreduce(1.0, name="the end")
    return int(optimizer.iterations), str(caught.value)


@pytest.mark.slow
@pytest.mark.faults
def test_a_step_that_is_left_out():
    (number, first), (steps, second) = ranks.run(2, left_out, initialise=False)
    assert (number, steps) == (3, 3)
    # Rank 0's deadline comes first, and it tells both.
    assert "gradients(float32 of shape 2" in first and re.search(r"rank\(s\) [01] did not submit it", first), first
    assert "'allreduce.the end'" in second and re.search(r"rank\(s\) [01] did not submit it", second), second


def joined():
    """A rank that has joined made fewer steps than the others; that is no mistake afterwards."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    used, unused = keras.Variable([1.0, 2.0]), keras.Variable([1.0])
    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(0.5))
    optimizer.build([used, unused])
    for number in range(3 - ddl.rank()):
        optimizer.apply([tf.fill([2], float(number)), None], [used, unused])
    ddl.broadcast_variables([used], root_rank=int(ddl.join()))
    for _ in range(2):
        optimizer.apply([tf.fill([2], float(ddl.rank())), None], [used, unused])
    assert everywhere(ddl, used)
    return used.numpy().tolist()


def test_after_join_steps_are_counted_anew():
    assert ranks.run(2, joined, initialise=False) == [[1 - 0.0 - 0.5 - 0.5 - 0.5, 2 - 1.5]] * 2


def step_of(ddl, weight, optimizer, by_tape):
    """Return a step of a loop of one's own, with a scaled loss."""
    optimizer.build([weight])

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(weight.value * x))
        tape = ddl.DistributedGradientTape(tape) if by_tape else tape
        optimizer.apply(tape.gradient(loss, [weight.value]), [weight])

    return step


def infinite():
    """Loops of one's own with a LossScaleOptimizer, around the distributed one, in it, and after a tape."""
    import keras

    import ddl_tensorflow as ddl

    ddl.init()
    rank, scaling = ddl.rank(), keras.optimizers.LossScaleOptimizer
    sgd = keras.optimizers.SGD
    makers = {
        "outside": lambda: scaling(ddl.DistributedOptimizer(sgd(0.1)), 2.0**4),
        "inside": lambda: ddl.DistributedOptimizer(scaling(sgd(0.1), 2.0**4)),
        "tape": lambda: scaling(sgd(0.1), 2.0**4),
    }
    for how, make in makers.items():
        for wrap in (lambda function: function, tf.function):
            weight, optimizer = keras.Variable([1.0, 2.0]), make()
            run = wrap(step_of(ddl, weight, optimizer, how == "tape"))
            for number in range(3):
                run(tf.fill([2], np.inf if rank == 1 and number == 1 else 1.0))
            got = weight.numpy().tolist(), int(optimizer.iterations), float(optimizer.dynamic_scale)
            assert got == (pytest.approx([0.8, 1.8]), 2, 2.0**3), (how, got)
            assert everywhere(ddl, weight, *optimizer.variables)


@pytest.mark.slow
def test_infinite_gradients_in_loops_of_ones_own():
    ranks.run(2, infinite, initialise=False)
