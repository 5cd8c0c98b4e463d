"""States of a training with TensorFlow: saved, restored, the same on all ranks; what is left when a rank is lost."""

from __future__ import annotations

import os

import numpy as np
import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def of_variables(ddl):
    rank = ddl.rank()
    variables = [tf.Variable([rank, 7]), tf.Variable(tf.fill([2, 2], float(rank)))]
    state = ddl.elastic.TensorFlowState(variables, epoch=rank, done=[rank])
    variables[0].assign([9, 9])
    state.epoch = 5
    state.restore()
    assert variables[0].numpy().tolist() == [rank, 7] and state.epoch == rank
    state.sync()
    assert variables[0].numpy().tolist() == [0, 7] and variables[1].numpy().tolist() == [[0, 0]] * 2
    assert (state.epoch, state.done) == (0, [0])
    variables[1].assign_add([[1.0] * 2] * 2)
    state.commit()
    variables[1].assign([[5.0] * 2] * 2)
    state.restore()
    assert variables[1].numpy().tolist() == [[1, 1]] * 2
    with pytest.raises(ddl.InvalidArgument, match="pass variables="):
        ddl.elastic.TensorFlowState(epoch=0)
    with pytest.raises(
        ddl.InvalidArgument, match=r"number 0 float32 of shape \(1,\).*number 0 float32 of shape \(2,\)"
    ):
        ddl.elastic.TensorFlowState([tf.Variable(tf.zeros([rank + 1]))]).sync()


def of_a_session(ddl):
    v1 = tf.compat.v1
    for resource in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("one", initializer=float(ddl.rank()), use_resource=resource)
            add = v1.assign_add(variable, 1.0)
            session.run(v1.global_variables_initializer())
            state = ddl.elastic.TensorFlowState(session=session, epoch=ddl.rank())
            state.sync()
            session.graph.finalize()  # nothing is added to it later
            assert session.run(add) == 1.0
            state.restore()
            assert session.run(variable) == 0.0 and state.epoch == 0
            state.sync()


def of_keras(ddl):
    import keras

    rank = ddl.rank()
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2), keras.layers.BatchNormalization()])
    with pytest.raises(ddl.InvalidArgument, match="no variables yet"):
        ddl.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(2)]))
    model.compile("adam", "mse")
    state = ddl.elastic.TensorFlowKerasState(model, epoch=rank)
    model.set_weights([weight + rank for weight in model.get_weights()])
    model.optimizer.variables[0].assign(3 + rank)
    state.commit()
    state.sync()
    bits = [np.array(variable).tobytes() for variable in (*model.variables, *model.optimizer.variables)]
    assert ddl.allgather_object(bits) == [bits] * 2 and int(model.optimizer.iterations) == 3 and state.epoch == 0
    model.fit(np.ones([4, 3]), np.ones([4, 2]), verbose=0)
    state.restore()
    assert bits == [np.array(variable).tobytes() for variable in (*model.variables, *model.optimizer.variables)]


def runs(ddl):
    """The training function goes back to its last commit when a rank is lost, and says so."""
    weight = tf.Variable(0.0)
    state = ddl.elastic.TensorFlowState([weight], batch=0)

    @tf.function
    def step():
        weight.assign_add(ddl.allreduce(tf.constant(1.0)))

    @ddl.elastic.run
    def train(state):
        while state.batch < 10:
            if state.batch == 5:
                state.commit()
            if state.batch == 8 and ddl.rank() == 1:
                os._exit(5)
            step()
            state.batch += 1

    with pytest.raises(ddl.HorovodInternalError, match="(?s)lost rank 1.*that of the last commit") as caught:
        train(state)
    assert (weight.numpy(), state.batch) == (5.0, 5)
    return type(caught.value).__qualname__


def everything():
    import ddl_tensorflow as ddl

    of_variables(ddl)
    of_a_session(ddl)
    of_keras(ddl)
    return runs(ddl)


@pytest.mark.slow
@pytest.mark.faults
def test_states():
    assert ranks.run(2, everything, may_die=[1]) == ["PeerLost", 5]


def test_files_are_written_as_in_other_frameworks() -> None:
    import ddl.elastic
    import ddl_tensorflow.elastic
    import ddl_tensorflow.keras.elastic

    assert ddl_tensorflow.elastic.fenced is ddl_tensorflow.keras.elastic.fenced is ddl.elastic.fenced
