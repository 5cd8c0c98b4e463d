"""Collectives on several tensors at once: values, gradients, what differs between ranks; in all modes."""

from __future__ import annotations

import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

WAYS = {"op": {}, "numpy": {"DDL_TENSORFLOW_OP": "0"}}


def in_a_session(function, *tensors):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fetches = function(*[tf.constant(tensor.numpy(), tensor.dtype) for tensor in tensors])
        fetched = session.run(fetches)
    return tf.nest.map_structure(tf.constant, fetched)


MODES = (lambda f, *tensors: f(*tensors), lambda f, *tensors: tf.function(f)(*tensors), in_a_session)


def gradient_of(verb, index, upstream):
    """Return a function: the gradient of one of several results by the first tensor."""

    def gradient(x):
        if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = verb([x, tf.ones([4, 1]), tf.constant([1, 2])])[index]
            return tape.gradient(y, x, output_gradients=tf.constant(upstream), unconnected_gradients="zero")
        y = verb([x, tf.ones([4, 1]), tf.constant([1, 2])])[index]
        return tf.gradients(y, x, grad_ys=tf.constant(upstream), unconnected_gradients="zero")[0]

    return gradient


def several(ddl, mode):
    rank, size = ddl.rank(), ddl.size()
    total = sum(range(1, size + 1))
    x, n = tf.fill([3], float(rank + 1)), tf.constant([[rank + 1]])
    got = mode(lambda a, b: ddl.grouped_allreduce([a, b], op=ddl.Sum), x, n)
    assert [result.numpy().tolist() for result in got] == [[total] * 3, [[total]]] and got[1].dtype == tf.int32
    got = mode(lambda a: ddl.grouped_allreduce([a, 2 * a], compression=ddl.Compression.fp16, name="half"), x)
    assert [result.numpy()[0] for result in got] == [total / size, 2 * total / size]
    got = mode(lambda a, b: ddl.grouped_allgather([a, b], name="rows"), tf.fill([rank + 1], float(rank)), n)
    assert got[0].numpy().tolist() == [float(r) for r in range(size) for _ in range(r + 1)]
    assert got[1].numpy().tolist() == [[r + 1] for r in range(size)]
    got = mode(lambda a: ddl.grouped_reducescatter([a, 10 * a], op=ddl.Sum), tf.range(2 * size, dtype=tf.float32))
    assert got[0].numpy().tolist() == [size * 2 * rank, size * (2 * rank + 1)]
    assert got[1].numpy().tolist() == [10 * size * 2 * rank, 10 * size * (2 * rank + 1)]

    def of_slices(a):
        slices = tf.IndexedSlices(a, tf.constant([rank, 2, 3]), dense_shape=tf.constant([4]))
        return [tf.convert_to_tensor(result) for result in ddl.grouped_allreduce([a, slices], op=ddl.Sum)]

    dense, sparse = mode(of_slices, x)
    own = [r + 1.0 if r < size else 0.0 for r in range(4)]
    assert dense.numpy().tolist() == [total] * 3
    assert sparse.numpy().tolist() == [own[0], own[1], own[2] + total, own[3] + total]
    assert ddl.grouped_allreduce([]) == ddl.grouped_allgather([]) == ddl.grouped_reducescatter([]) == []

    up = [float(rank + 1)] * 4
    assert mode(gradient_of(lambda t: ddl.grouped_allreduce(t, op=ddl.Sum), 0, up), tf.ones([4])).numpy()[0] == total
    assert (
        mode(gradient_of(lambda t: ddl.grouped_allreduce(t), 1, [[0.0]] * 4), tf.ones([4])).numpy().tolist() == [0] * 4
    )
    up = [float(r) for r in range(size) for _ in range(4)]
    assert mode(gradient_of(ddl.grouped_allgather, 0, up), tf.ones([4])).numpy().tolist() == [float(rank)] * 4
    got = mode(
        gradient_of(lambda t: ddl.grouped_reducescatter(t, op=ddl.Sum), 0, [float(rank)] * 2), tf.ones([2 * size])
    )
    assert got.numpy().tolist() == [float(size * r) for r in range(size) for _ in range(2)]


def everything():
    import ddl_tensorflow as ddl

    for mode in MODES:
        several(ddl, mode)
    for many in (2, 7):
        tensors = [tf.ones([i + 1]) for i in range(many)]
        tensors[-1] = tf.ones([many + ddl.rank()])
        with pytest.raises(ddl.HorovodInternalError, match=f"shape {many}[,)].* rank 1 .*shape {many + 1}[,)]"):
            ddl.grouped_allreduce(tensors, name="differ")
    alone = [ddl.add_process_set([r]) for r in range(ddl.size())][ddl.rank()]
    assert ddl.grouped_allreduce([tf.constant(3.0)], op=ddl.Sum, process_set=alone)[0].numpy() == 3.0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_several_tensors(way):
    ranks.run(2, everything, env=WAYS[way])
