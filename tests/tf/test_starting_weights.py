"""Ranks that begin with different weights are told so in the second step: a broadcast was forgotten."""

from __future__ import annotations

import logging
import socket
from typing import Any, Callable, List

import numpy as np
import pytest
import ranks
import said

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def text(rank: int, size: int, name: str, more: str = "") -> str:
    return (
        f"[rank {rank}/{size} host {socket.gethostname()}] the ranks begin with different weights, so each would train "
        f"another model: rank 1 has another '{name}'{more} than rank {rank}. Send them on all ranks before the second "
        "step: by BroadcastGlobalVariablesCallback(0) in fit, or by broadcast_variables(variables, root_rank=0)"
    )


def fitted(odd: bool, callback: bool, eager: bool) -> List[str]:
    """Fit a model for a few steps, on rank 1 with another bias if it is ``odd``; return what was told."""
    import keras

    import ddl_tensorflow.keras as ddl

    ddl.init()
    warned = said.Said(level=logging.WARNING)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1, name="last")])
    model.build((None, 3))
    if odd and ddl.rank() == 1:
        model.layers[1].bias.assign([1.0])
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", run_eagerly=eager, jit_compile=False)
    x = np.random.RandomState(ddl.rank()).randn(24, 3).astype("f")
    callbacks = [ddl.callbacks.BroadcastGlobalVariablesCallback(0)] if callback else []
    model.fit(x, x[:, :1], batch_size=6, verbose=0, callbacks=callbacks)
    return warned.texts


@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("way", ["op", "numpy"])
def test_different_weights_are_told_of_once(way: str, eager: bool) -> None:
    env = {"DDL_TENSORFLOW_OP": "0"} if way == "numpy" else {}
    first, *others = ranks.run(3, fitted, True, False, eager, initialise=False, env=env)
    assert [each for each in first if "different weights" in each] == [text(0, 3, "sequential/last/bias")]
    assert not any("different weights" in each for texts in others for each in texts)


@pytest.mark.parametrize(("odd", "callback"), [(False, False), (True, True)], ids=["same", "broadcast"])
def test_equal_weights_are_not_told_of(odd: bool, callback: bool) -> None:
    for texts in ranks.run(2, fitted, odd, callback, False, initialise=False):
        assert not any("different weights" in each for each in texts)


def stepping(ddl: Any, variables: List[Any], process_set: Any) -> Callable[[], None]:
    """Return a step with a tape, in a graph."""

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables])
        tape = ddl.DistributedGradientTape(tape, process_set=process_set)
        for gradient, variable in zip(tape.gradient(loss, variables), variables):
            variable.assign_sub(0.1 * gradient)

    return step


def with_tapes() -> List[List[str]]:
    """Weights that are sent after the first step are the same; those of a process set are those of its ranks."""
    import ddl_tensorflow as ddl

    ddl.init()
    warned = said.Said(level=logging.WARNING)
    told = []
    last_two = ddl.add_process_set([1, 2])
    for process_set, send in ((ddl.global_process_set, True), (last_two, False)):
        variables = [tf.Variable([1.0, 2.0], name="a"), tf.Variable([float(ddl.rank())], name="b")]
        step = stepping(ddl, variables, process_set)
        if process_set.included():
            step()
            if send:
                ddl.broadcast_variables(variables, root_rank=0)
            step()
            step()
        told.append([each for each in warned.texts if "different weights" in each])
    return told


def test_tapes() -> None:
    other = text(1, 3, "b:0").replace("rank 1 has", "rank 2 has")
    assert ranks.run(3, with_tapes, initialise=False) == [[[], []], [[], [other]], [[], []]]


def without_names() -> List[str]:
    import ddl_tensorflow as ddl

    ddl.init()
    warned = said.Said(level=logging.WARNING)
    variables = [tf.Variable([float(ddl.rank())]), tf.Variable([1.0])]
    step = stepping(ddl, variables, ddl.global_process_set)
    for _ in range(3):
        step()
    return warned.texts


def test_variables_that_have_the_same_name() -> None:
    first, second = ranks.run(2, without_names, initialise=False)
    assert [each for each in first if "different weights" in each] == [text(0, 2, "Variable:0")]
    assert not any("different weights" in each for each in second)


def of_a_session() -> List[str]:
    """A session of TF1 keeps its variables to itself: nothing is compared, and nothing fails."""
    import ddl_tensorflow as ddl

    ddl.init()
    warned = said.Said(level=logging.WARNING)
    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", initializer=[1.0, float(ddl.rank())])
        train = ddl.DistributedOptimizer(tf1.train.GradientDescentOptimizer(0.1)).minimize(variable * variable)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(3):
                session.run(train)
    return warned.texts


def test_sessions_compare_nothing() -> None:
    assert ranks.run(2, of_a_session, initialise=False) == [[], []]
