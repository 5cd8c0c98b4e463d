"""The verbs on TensorFlow's tensors: the same results eagerly, in a tf.function and in a session of TF1, by either way.

By either way: through the compiled op, and through numpy_function where there is no compiler.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

NUMBERS = "float16 bfloat16 float32 float64 int8 uint8 int16 uint16 int32 int64 complex64".split()
WAYS = {"op": {}, "numpy": {"DDL_TENSORFLOW_OP": "0"}}


def eagerly(function, *tensors):
    return function(*tensors)


def in_a_function(function, *tensors):
    return tf.function(function)(*tensors)


def in_a_session(function, *tensors):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fetches = function(*[tf.constant(tensor.numpy(), tensor.dtype) for tensor in tensors])
        fetched = session.run(fetches)
    return tf.nest.map_structure(tf.constant, fetched)


MODES = (eagerly, in_a_function, in_a_session)


def values(tensor):
    return tf.cast(tensor, tf.complex64 if tensor.dtype.is_complex else tf.float64).numpy().tolist()


def sums(ddl, mode):
    rank, size = ddl.rank(), ddl.size()
    total = size * (size - 1) // 2
    for dtype in NUMBERS:
        x = tf.cast(tf.fill([2, 3], rank + 1), dtype)
        assert values(mode(lambda t: ddl.allreduce(t, op=ddl.Sum, name="sum"), x)) == [[total + size] * 3] * 2, dtype
        got = mode(lambda t: ddl.allreduce(t, op=ddl.Sum, prescale_factor=2.0, postscale_factor=0.5), x)
        assert values(got) == [[total + size] * 3] * 2 and got.dtype == dtype
        rows = tf.cast(tf.fill([size + 1, 2], rank), dtype)
        part = mode(lambda t: ddl.reducescatter(t, op=ddl.Sum), rows)
        assert values(part) == [[total] * 2] * (2 if rank == 0 else 1)
    mean = mode(lambda t: ddl.allreduce(t, op=ddl.Average), tf.constant([float(rank)]))
    assert mean.numpy().tolist() == [total / size]
    for op, expected in ((ddl.Min, 1), (ddl.Max, size), (ddl.Product, math.factorial(size))):
        assert mode(lambda t, op=op: ddl.allreduce(t, op=op), tf.constant(rank + 1)).numpy() == expected
    for compression in (ddl.Compression.fp16, ddl.Compression.bf16, "fp16", "bf16"):
        got = mode(lambda t, c=compression: ddl.allreduce(t, compression=c, op=ddl.Sum), tf.constant([1.0, 3.0]))
        assert got.numpy().tolist() == [size, 3.0 * size] and got.dtype == tf.float32
    for plain in (rank + 1, [rank + 1], np.full([1], rank + 1)):
        assert np.ravel(mode(lambda p=plain: ddl.allreduce(p, op=ddl.Sum))).tolist() == [total + size]
    empty = mode(lambda t: ddl.allreduce(t), tf.zeros([0, 3]))
    assert empty.shape == (0, 3)
    parallel = mode(lambda t: ddl.allreduce(t, op=ddl.Adasum), tf.constant([1.0, 2.0]))
    assert parallel.numpy().tolist() == [1.0, 2.0]


def moves(ddl, mode):
    rank, size = ddl.rank(), ddl.size()
    for dtype in (*NUMBERS, "bool"):
        x = tf.cast(tf.fill([rank + 1, 2], rank), dtype)
        got = mode(lambda t: ddl.allgather(t), x)
        expected = tf.cast([[r] * 2 for r in range(size) for _ in range(r + 1)], dtype)
        assert got.dtype == x.dtype and tf.reduce_all(got == expected)
        root = tf.cast(tf.fill([3], rank), dtype)
        assert tf.reduce_all(mode(lambda t: ddl.broadcast(t, root_rank=1), root) == tf.cast([1] * 3, dtype))
    blocks = tf.range(size) + 10 * rank
    assert mode(lambda t: ddl.alltoall(t), blocks).numpy().tolist() == [rank + 10 * r for r in range(size)]
    splits = [rank + 1] * size
    rows = tf.fill([(rank + 1) * size, 1], rank)
    got, counts = mode(lambda t: ddl.alltoall(t, splits), rows)
    assert got.numpy()[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
    assert counts.numpy().tolist() == [r + 1 for r in range(size)] and counts.dtype == tf.int32


def sparse(ddl, mode):
    rank, size = ddl.rank(), ddl.size()

    def reduced(t):
        slices = tf.IndexedSlices(t, tf.constant([rank, 5]), dense_shape=tf.constant([7, 2]))
        return tf.convert_to_tensor(ddl.allreduce(slices))

    got = mode(reduced, tf.ones([2, 2])).numpy()[:, 0].tolist()
    expected = [1 / size if r < size else 0.0 for r in range(7)]
    expected[5] += 1.0
    assert got == pytest.approx(expected)


def gradients(ddl, mode):
    rank, size = ddl.rank(), ddl.size()
    total = size * (size - 1) // 2

    def of(verb, upstream):
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = verb(x)
            return tape.gradient(y, x, output_gradients=tf.constant(upstream, tf.float32))

        def graph_gradient(x):
            y = verb(x)
            return tf.gradients(y, x, grad_ys=tf.constant(upstream, tf.float32))[0]

        return graph_gradient if mode is in_a_session else gradient

    vector = tf.ones([2])
    assert mode(of(lambda t: ddl.allreduce(t, op=ddl.Sum), [float(rank)] * 2), vector).numpy().tolist() == [total] * 2
    got = mode(of(lambda t: ddl.broadcast(t, 1), [float(rank)] * 2), vector).numpy().tolist()
    assert got == ([total / size] * 2 if rank == 1 else [0.0, 0.0])
    upstream = [float(r) for r in range(size) for _ in range(r + 1)]
    assert mode(of(ddl.allgather, upstream), tf.ones([rank + 1])).numpy().tolist() == [float(rank)] * (rank + 1)
    got = mode(of(lambda t: ddl.reducescatter(t, op=ddl.Sum), [float(rank)]), tf.ones([size])).numpy().tolist()
    assert got == [float(size * r) for r in range(size)]
    got = mode(of(ddl.alltoall, [float(rank)] * size), tf.ones([size])).numpy().tolist()
    assert got == [float(r) for r in range(size)]


def everything():
    import ddl_tensorflow as ddl

    ddl.init()
    for mode in MODES:
        for check in (sums, moves, sparse, gradients):
            check(ddl, mode)
    order(ddl)
    in_graphs(ddl)


def order(ddl):
    """Ranks call the same names in different orders; a set waits for none of the others."""
    import threading

    rank, size = ddl.rank(), ddl.size()
    results = {}

    def submit(name):
        results[name] = ddl.allreduce(tf.constant([1.0]), op=ddl.Sum, name=name).numpy()[0]

    names = ["a", "b", "c", "d"]
    threads = [threading.Thread(target=submit, args=(name,)) for name in (names if rank else names[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(names, size)
    alone = ddl.add_process_set([rank]) if size == 1 else [ddl.add_process_set([r]) for r in range(size)][rank]
    assert ddl.allreduce(tf.constant([2.0]), op=ddl.Sum, process_set=alone).numpy()[0] == 2
    ddl.barrier()


def in_graphs(ddl):
    """What TensorFlow does with graphs: constants, loops, branches, many ops at once that depend on nothing."""
    size = ddl.size()

    @tf.function
    def of_constants():
        return ddl.allreduce(tf.constant([1.0]), op=ddl.Sum)

    @tf.function
    def in_a_loop():
        x = tf.ones([2])
        for _ in tf.range(3):  # each round needs the one before: else TensorFlow runs several at once, under one name
            x = ddl.allreduce(x, op=ddl.Sum)
        return x

    @tf.function
    def in_a_branch(x):
        return tf.cond(x > 0, lambda: ddl.allreduce(tf.ones([2]), op=ddl.Sum), lambda: tf.zeros([2]))

    @tf.function
    def many(x):
        return [ddl.allreduce(x + float(i), op=ddl.Sum, name=f"many.{i}") for i in range(30)]

    @tf.function
    def unknown(x):
        return ddl.allreduce(x, op=ddl.Sum)

    free = unknown.get_concrete_function(tf.TensorSpec(None))
    for step in range(3):
        assert of_constants().numpy().tolist() == [size]
        assert in_a_loop().numpy().tolist() == [size**3] * 2
        assert in_a_branch(tf.constant(1.0)).numpy().tolist() == [size] * 2
        assert [result.numpy() for result in many(tf.constant(float(step)))] == [size * (step + i) for i in range(30)]
        assert free(tf.ones([step + 1, 2])).numpy().tolist() == [[size] * 2] * (step + 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_verbs(way):
    ranks.run(2, everything, env=WAYS[way])


@pytest.mark.slow
def test_verbs_on_three_ranks():
    ranks.run(3, everything)
