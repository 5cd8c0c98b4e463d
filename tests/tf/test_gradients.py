"""Averages of gradients: dense, sparse, missing, of many types; eagerly and in a tf.function, by either way."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

WAYS = {"op": {}, "numpy": {"DDL_TENSORFLOW_OP": "0"}}
MODES = (lambda function: function(), lambda function: tf.function(function)())


def tape_of(ddl, variables, loss, **arguments):
    """Return the averages of the gradients of ``loss()``."""
    with tf.GradientTape() as tape:
        value = loss()
    return ddl.DistributedGradientTape(tape, **arguments).gradient(value, variables)


def types_and_sizes(ddl, run):
    """A gradient of each type, small and large and empty; each rank's is its number plus one."""
    rank, size = ddl.rank(), ddl.size()
    mean = (size + 1) / 2
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        variables = [tf.Variable(tf.zeros(shape, dtype)) for shape in ([3, 2], [], [0, 4], [200, 200], [65_537])]

        def loss(variables=variables):
            return tf.add_n([tf.reduce_sum(tf.cast(v, tf.float32)) for v in variables]) * (rank + 1)

        for arguments, factor in (({}, mean), ({"op": ddl.Sum}, mean * size), ({"bucket_bytes": 1}, mean)):
            got = run(lambda v=variables, loss=loss, a=arguments: tape_of(ddl, v, loss, **a))
            assert [gradient.dtype for gradient in got] == [tf.as_dtype(dtype)] * 5
            for array, variable in zip(got, variables):
                assert np.array_equal(tf.cast(array, tf.float64), np.full(variable.shape, factor)), (dtype, arguments)


def arguments(ddl, run):
    rank, size = ddl.rank(), ddl.size()
    mean = (size + 1) / 2
    a, b, unused = tf.Variable([1.0, 2.0]), tf.Variable(tf.ones([100, 100])), tf.Variable([5.0])

    def loss():
        return (tf.reduce_sum(a) + tf.reduce_sum(b)) * (rank + 1)

    def averages(**options):
        got = run(lambda: tape_of(ddl, [a, unused, b], loss, **options))
        assert got[1] is None
        return got[0].numpy().tolist(), float(got[2][7, 7])

    for options in (
        *({"compression": ddl.Compression.fp16}, {"compression": ddl.Compression.bf16}),
        *({"gradient_predivide_factor": 2.0}, {"num_groups": 2}, {"groups": [[b, a]]}, {"groups": 1}),
    ):
        assert averages(**options) == ([mean] * 2, mean), options
    # Gradients that are parallel are averaged by Adasum: (r + 1) g and g, say; of equal ones, exactly.
    with tf.GradientTape() as tape:
        same = tf.reduce_sum(a) * 3 + tf.reduce_sum(b)
    got = ddl.DistributedGradientTape(tape, op=ddl.Adasum).gradient(same, [a, b])
    assert got[0].numpy().tolist() == [3.0, 3.0] and float(got[1][0, 0]) == 1
    assert averages(process_set=ddl.process_set_by_id(1)) == ([rank + 1] * 2, rank + 1)  # of one rank
    with tf.GradientTape() as tape:
        value = loss()
    tape = ddl.DistributedGradientTape(tape)
    tape.register_local_source(a)
    got = tape.gradient(value, {"a": a, "b": b})
    assert got["a"].numpy() == pytest.approx([(rank + 1) / size] * 2) and float(got["b"][1, 1]) == mean


def sparse(ddl, run):
    rank, size = ddl.rank(), ddl.size()
    table, dense = tf.Variable(tf.zeros([6, 2])), tf.Variable([1.0])

    def loss():  # row 5 twice on every rank, and the rank's own row
        rows = tf.gather(table, [rank, 5, 5])
        return tf.reduce_sum(rows) * (rank + 1) + tf.reduce_sum(dense)

    expected = np.zeros(6)
    expected[:size] = (np.arange(size) + 1) / size
    expected[5] += 2 * (size + 1) / 2
    for options in ({}, {"gradient_predivide_factor": 4.0}, {"compression": ddl.Compression.fp16}):

        def both(options=options):
            got = tape_of(ddl, [table, dense], loss, **options)
            assert isinstance(got[0], tf.IndexedSlices)
            return tf.convert_to_tensor(got[0]), got[1]

        got = run(both)
        assert np.allclose(got[0].numpy()[:, 1], expected, rtol=1e-3) and got[1].numpy() == pytest.approx(1)
    got = run(lambda: tape_of(ddl, [table, dense], loss, sparse_as_dense=True))
    assert np.allclose(got[0].numpy()[:, 1], expected, rtol=1e-6)
    only = run(lambda: tf.convert_to_tensor(tape_of(ddl, [table], loss)[0]))  # there is no dense one
    assert np.allclose(only.numpy()[:, 1], expected, rtol=1e-6)


def partial(ddl, run):
    """Layers that stay on their rank; a persistent tape; a tape that is distributed before its ``with``."""
    import keras

    rank, size = ddl.rank(), ddl.size()
    layers = [keras.layers.Dense(1, kernel_initializer="ones") for _ in range(2)]
    for layer in layers:
        layer.build((None, 1))
    kernels = [layer.kernel for layer in layers]
    x = tf.constant([[float(rank + 1)]])
    tape = tf.GradientTape(persistent=True)
    for scale in (True, False):
        if scale:
            tape = ddl.PartialDistributedGradientTape(tape, local_layers=layers[0])
        else:
            tape = ddl.PartialDistributedGradientTape(
                tf.GradientTape(), local_layers=[layers[0]], scale_local_gradients=False
            )
        with tape:
            value = tf.reduce_sum(layers[0](x) + layers[1](x))
        got = tape.gradient(value, kernels)
        assert got[0].numpy() == pytest.approx((rank + 1) / (size if scale else 1)) and got[1].numpy() == (size + 1) / 2
    with pytest.raises(ddl.InvalidArgument, match="not distributed yet"):
        ddl.DistributedGradientTape(tape)


def joins(ddl, run):
    """A rank that has joined supplies zeros to the gradients of the others."""
    rank, size = ddl.rank(), ddl.size()
    variables = [tf.Variable([1.0, 1.0]), tf.Variable(tf.ones([100, 100]))]
    if rank < size - 1:
        got = run(lambda: tape_of(ddl, variables, lambda: tf.add_n([tf.reduce_sum(v) for v in variables])))
        assert got[0].numpy() == pytest.approx([(size - 1) / size] * 2)
        assert float(got[1][9, 9]) == pytest.approx((size - 1) / size)
    ddl.join()


def everything():
    import ddl_tensorflow as ddl

    ddl.init()
    ddl.add_process_set([0])
    for run in MODES:
        for check in (types_and_sizes, arguments, sparse, partial, joins):
            check(ddl, run)
    refused(ddl)


def refused(ddl):
    with tf.GradientTape() as tape:
        pass
    for options, text in (
        ({"op": ddl.Max}, r"op=.*ddl.Average, ddl.Sum and ddl.Adasum"),
        ({"gradient_predivide_factor": 0.0}, "must be a number above 0"),
        ({"gradient_predivide_factor": 2.0, "op": ddl.Sum}, "needs op=ddl.Average"),
        ({"compression": "int8"}, "compression='int8' is not for single tensors"),
        ({"num_groups": -1}, "groups=-1 must be"),
        ({"scale_local_gradients": [tape]}, "True or False; give local_layers by name"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=text):
            ddl.DistributedGradientTape(tape, **options)
    with pytest.raises(ddl.InvalidArgument, match=r"\[rank ./. host \S+\].* not a list"):
        ddl.DistributedGradientTape([])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_averages(way):
    ranks.run(2, everything, env=WAYS[way])


@pytest.mark.slow
def test_averages_between_three_hosts():
    ranks.run(3, everything, env={"DDL_SHM": "0"})  # no memory is shared, as if they were hosts


def before_init():
    import ddl_tensorflow as ddl

    v = tf.Variable([1.0])
    with pytest.raises(ddl.InvalidState, match="init"):
        tf.function(lambda: tape_of(ddl, [v], lambda: v * 2))()


def test_before_init():
    ranks.run(1, before_init, initialise=False)


def allocator_tuned():
    """Whether glibc keeps freed memory: with no tape or optimizer, with a tape, with an optimizer."""
    import ddl_tensorflow as ddl
    from ddl.adapter import malloc_settings

    answers = [malloc_settings.tune_allocator(False)]
    for wrap in (
        lambda: ddl.DistributedGradientTape(tf.GradientTape()),
        lambda: ddl.DistributedOptimizer(tf.keras.optimizers.SGD()),
    ):
        wrap()
        answers.append(malloc_settings.tune_allocator(False))
        malloc_settings._tuned = None
    return answers


def not_tuned():
    import ddl_tensorflow as ddl
    from ddl import ConfigError

    with pytest.raises(ConfigError, match="DDL_TUNE_ALLOCATOR='perhaps': it must be 0 .off. or 1"):
        ddl.DistributedGradientTape(tf.GradientTape())


def test_freed_gradients_are_kept():
    assert ranks.run(1, allocator_tuned) == [[False, True, True]]
    assert ranks.run(1, allocator_tuned, env={"DDL_TUNE_ALLOCATOR": "0"}) == [[False, False, False]]
    ranks.run(1, not_tuned, env={"DDL_TUNE_ALLOCATOR": "perhaps"}, initialise=False)
