"""Factors and shares are exact in each type: rows of ``IndexedSlices``, ``prescale_factor`` and its like, gradients."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

MODES = (lambda function, *tensors: function(*tensors), lambda function, *tensors: tf.function(function)(*tensors))
ROWS = 5


def rows_of(rank, dtype):
    """Return slices with two rows of the same index on every rank, one of its own, and these as an array."""
    values, indices = np.array([[7, 1], [5, 3], [9, 2]]).astype(dtype) + np.array(rank).astype(dtype), [4, 4, rank]
    dense = np.zeros([ROWS, 2], dtype)
    np.add.at(dense, indices, values)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([ROWS, 2])), dense


def slices(ddl, run):
    """Of integers, rows of one index are one number: their sum is divided, and then truncated, as a dense one is."""
    rank, size = ddl.rank(), ddl.size()
    for dtype in (np.int8, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64):
        total = sum(rows_of(other, dtype)[1] for other in range(size))
        mean = total // size if np.issubdtype(dtype, np.integer) else total / size
        own, as_dense = rows_of(rank, dtype)
        got = run(lambda rows: tf.convert_to_tensor(ddl.allreduce(rows, name="rows")), own)
        assert got.dtype == dtype and got.numpy().tolist() == mean.tolist(), dtype
        dense = run(lambda x: ddl.allreduce(x, name="dense"), tf.constant(as_dense))
        assert dense.numpy().tolist() == got.numpy().tolist(), dtype
    own, _ = rows_of(rank, np.int32)
    total = sum(rows_of(other, np.int32)[1] for other in range(size))
    got = run(lambda: tf.convert_to_tensor(ddl.allreduce(own, op=ddl.Sum, prescale_factor=0.5, postscale_factor=0.5)))
    assert got.numpy().tolist() == (total // 4).tolist()
    own, _ = rows_of(rank, np.float64)
    total = sum(rows_of(other, np.float64)[1] for other in range(size))
    cases = (({"prescale_factor": 1 / 3}, 1 / 3 / size), ({"op": ddl.Sum, "postscale_factor": 0.1}, 0.1))
    for arguments, factor in cases:
        got = run(lambda rows, a=arguments: tf.convert_to_tensor(ddl.grouped_allreduce([rows], **a)[0]), own)
        assert np.abs(got.numpy() / np.where(total, total, 1) - np.where(total, factor, 0)).max() < 1e-15


def wide_sums(ddl, run):
    """An average of integers does not wrap, though their sum is more than the type holds."""
    for dtype in (np.uint8, np.int8, np.int16, np.int32):
        own = tf.constant([[np.iinfo(dtype).max - 2 * ddl.rank(), np.iinfo(dtype).min]] * 3, dtype)
        size = ddl.size()
        wanted = [[np.iinfo(dtype).max - (size - 1), np.iinfo(dtype).min]]
        assert run(lambda x: ddl.allreduce(x, name="mean"), own).numpy().tolist() == wanted * 3, dtype
        assert run(lambda x: ddl.grouped_allreduce([x, x])[1], own).numpy().tolist() == wanted * 3, dtype
        assert run(lambda x: ddl.reducescatter(x, op=ddl.Average), own[:size]).numpy().tolist() == wanted, dtype
        rows = tf.IndexedSlices(own[:1], tf.constant([2]), tf.constant([4, 2]))
        got = run(lambda x: tf.convert_to_tensor(ddl.allreduce(x, name="rows")), rows)
        assert got.dtype == dtype and got.numpy()[2:3].tolist() == wanted, dtype


def sixteen_bits(ddl, run):
    """A factor is no number of 16 bits: only the product is."""
    size = ddl.size()
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = np.linspace(1, 3, 1000).astype(dtype)
        third = (x.astype(np.float64) / 3).astype(dtype)
        for verb in (ddl.allreduce, lambda t, **a: ddl.grouped_allreduce([t], **a)[0], ddl.reducescatter):
            share = slice(None) if verb is not ddl.reducescatter else slice(500 * ddl.rank(), 500 * ddl.rank() + 500)
            before = run(lambda t, v=verb: v(t, op=ddl.Max, prescale_factor=1 / 3), tf.constant(x))
            after = run(lambda t, v=verb: v(t, op=ddl.Max, postscale_factor=1 / 3), tf.constant(x))
            assert np.array_equal(before.numpy(), third[share]) and np.array_equal(after.numpy(), third[share]), dtype
        variable = tf.Variable(tf.zeros([1000], dtype))

        def averaged(x, variable=variable):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * x)
            return ddl.DistributedGradientTape(tape, gradient_predivide_factor=1 / 3).gradient(loss, variable)

        thrice = (x.astype(np.float64) * 3).astype(dtype).astype(np.float64) * size  # the core rounds sums once
        expected = (thrice.astype(dtype).astype(np.float64) / 3 / size).astype(dtype)
        assert np.array_equal(run(averaged, tf.constant(x)).numpy(), expected), dtype


def gradients(ddl, run):
    """Of doubles: the factor has all its digits."""
    rank, size = ddl.rank(), ddl.size()
    for verb in (ddl.reducescatter, lambda t, **a: ddl.grouped_reducescatter([t], **a)[0]):

        def gradient(verb=verb):
            x = tf.ones([size], tf.float64)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = verb(x, op=ddl.Sum, prescale_factor=1 / 3, postscale_factor=0.1)
            return tape.gradient(y, x, output_gradients=tf.constant([rank + 1.0], tf.float64))

        assert run(gradient).numpy() == pytest.approx([(r + 1) / 3 * 0.1 * size for r in range(size)], rel=1e-15)


def exchanged(ddl, run):
    """The gradient of an all-to-all of equal shares, of which ranks have different ones."""
    rank, size = ddl.rank(), ddl.size()
    x = tf.fill([(rank + 1) * size, 2], float(rank))
    weights = tf.constant([[float(10 * rank + r)] * 2 for r in range(size) for _ in range(r + 1)])

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ddl.alltoall(x)
        return y, tape.gradient(y, x, output_gradients=weights)

    received, back = run(gradient)
    assert received.numpy()[:, 1].tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    assert back.numpy()[:, 0].tolist() == [10.0 * r + rank for r in range(size) for _ in range(rank + 1)]


def everything():
    import ddl_tensorflow as ddl

    for run in MODES:
        for check in (slices, wide_sums, sixteen_bits, gradients, exchanged):
            check(ddl, run)


@pytest.mark.slow
@pytest.mark.parametrize("way", {"op": {}, "numpy": {"DDL_TENSORFLOW_OP": "0"}}.items(), ids=lambda pair: pair[0])
def test_factors(way):
    ranks.run(2, everything, env=way[1])
