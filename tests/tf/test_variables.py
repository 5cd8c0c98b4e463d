"""Variables and objects of one rank on all: eagerly, in a function, in TF1; what ranks do not have alike is named."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


class Odd:
    """Not plain data."""

    def __init__(self, value):
        self.value = value


def variables():
    import keras

    import ddl_tensorflow as ddl

    rank = ddl.rank()
    types = ["float16", "bfloat16", "float32", "int64", "bool", "uint32", "complex64"]
    values = [tf.Variable(tf.cast(tf.fill([2, 3], rank), dtype)) for dtype in types]
    values += [tf.Variable(float(rank)), tf.Variable(tf.zeros([0, 2]))]
    ddl.broadcast_variables(values, root_rank=1)
    assert all(tf.reduce_all(value == tf.cast(1, value.dtype)) for value in values)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    model.set_weights([weight + rank for weight in model.get_weights()])
    ddl.broadcast_variables([*model.variables, *model.optimizer.variables], root_rank=0)
    bits = [np.array(variable).tobytes() for variable in (*model.variables, *model.optimizer.variables)]
    assert ddl.allgather_object(bits) == [bits] * ddl.size()
    values = [tf.Variable([float(rank + i)]) for i in range(3)]

    @tf.function
    def sent():
        ddl.broadcast_variables(values, 1)
        return [variable.read_value() for variable in values]

    assert [value.numpy()[0] for value in sent()] == [1.0, 2.0, 3.0] == [value.numpy()[0] for value in values]
    values[0].assign([5.0 + rank])
    assert ddl.broadcast_(values[:1], 0, name="again")[0].numpy() == [5.0] == values[0].numpy()
    assert tf.function(lambda: ddl.broadcast_(values, 1))()[0].numpy() == [5.0]
    assert ddl.broadcast_variables([], 0) is None

    other = [*values, tf.Variable(tf.zeros([2 + rank]), name="odd")]
    with pytest.raises(ddl.InvalidArgument, match=r"rank 0 there is number 3 float32 of shape \(2,\).* \(3,\).*odd"):
        ddl.broadcast_variables(other, 0)
    with pytest.raises(ddl.InvalidArgument, match="rank 0 there is root_rank=0; on rank 1 root_rank=1"):
        ddl.broadcast_variables(values, rank)
    with pytest.raises(ddl.InvalidArgument, match="root_rank=5 is not in"):
        ddl.broadcast_variables(values, 5)
    with pytest.raises(ddl.HorovodInternalError, match="tensor 3: float32 of shape 2, .*tensor 3: float32 of shape 3,"):
        tf.function(lambda: [ddl.broadcast_variables(other, 0), None][1])()
    with pytest.raises(ddl.InvalidState, match=r"broadcast_variables\(model.variables, root_rank\)"):
        ddl.broadcast_global_variables(0)


def sessions():
    """Variables of TF1, of both kinds; the hook, also in a second graph."""
    import ddl_tensorflow as ddl

    v1 = tf.compat.v1
    hook = ddl.BroadcastGlobalVariablesHook(1)
    for resource in (True, False):
        with tf.Graph().as_default():
            variable = v1.get_variable("one", initializer=tf.fill([2], float(ddl.rank())), use_resource=resource)
            v1.train.get_or_create_global_step()
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(variable).tolist() == [1.0, 1.0]
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("one", initializer=float(ddl.rank()), use_resource=resource)
            session.run(v1.global_variables_initializer())
            session.run(ddl.broadcast_global_variables(0))
            assert session.run(variable) == 0.0
            assert ddl.broadcast_object(ddl.rank(), 1, session=session) == 1


def objects():
    import ddl_tensorflow as ddl

    rank, size = ddl.rank(), ddl.size()
    assert ddl.broadcast_object({"rank": rank, "x": (1, None)}, root_rank=1) == {"rank": 1, "x": (1, None)}
    assert ddl.broadcast_object_fn(1, name="fn")([rank]) == [1]
    assert ddl.allgather_object([rank] * rank, name="all") == [[r] * r for r in range(size)]
    with pytest.raises(ddl.InvalidArgument, match="Odd is not plain data"):
        ddl.broadcast_object(Odd(1))
    got = ddl.allgather_object(Odd(rank), allow_pickle=True)
    assert [entry.value for entry in got] == list(range(size))
    alone = [ddl.add_process_set([r]) for r in range(size)][rank]
    assert ddl.broadcast_object(rank, rank, process_set=alone) == rank


def everything():
    variables()
    sessions()
    objects()


def test_variables_and_objects():
    ranks.run(2, everything)
