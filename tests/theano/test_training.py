"""N ranks train as one process does with all of their batches; their weights have the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

T = pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

import theano  # noqa: E402
from theano_rules import RULES  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS, GLOBAL = 20, 24


def batches(size=1, rank=0):
    """Return what a rank gets of each batch."""
    x = np.random.RandomState(0).randn(STEPS, size, GLOBAL // size, 5).astype("f")[:, rank]
    return [(part, part[:, :1] * part[:, 1:2]) for part in x]


def model(seed):
    """Return inputs, loss and parameters; one of them cannot be seen by ``T.grad`` as contiguous."""
    random = np.random.RandomState(seed)
    shapes = {"first": (7, 5), "bias": (7,), "second": (7, 1), "scale": ()}
    parameters = [
        theano.shared(random.randn(*shape).astype("f") if shape else np.float32(1), name)
        for name, shape in shapes.items()
    ]
    first, bias, second, scale = parameters
    x, y = T.fmatrix("x"), T.fmatrix("y")
    output = scale * T.dot(T.tanh(T.dot(x, first.T) + bias), second)
    return [x, y], T.mean((output - y) ** 2), parameters


def in_graph(ddl, inputs, loss, parameters, rule, mode):
    gradients = T.grad(loss, parameters)
    updates = RULES[rule](gradients if ddl is None else ddl.allreduce(gradients), parameters)
    return theano.function(inputs, loss, updates=updates, mode=mode), updates


def one_by_one(ddl, inputs, loss, parameters, rule, mode):
    gradients = [ddl.allreduce(gradient) for gradient in T.grad(loss, parameters)]
    updates = RULES[rule](gradients, parameters)
    return theano.function(inputs, loss, updates=updates, mode=mode), updates


def of_the_loss(ddl, inputs, loss, parameters, rule, mode):
    """The gradient of an average over all ranks is what each rank adds to it, averaged."""
    shares = T.grad(ddl.allreduce(loss), parameters)
    updates = RULES[rule](ddl.allreduce(shares), parameters)
    return theano.function(inputs, loss, updates=updates, mode=mode), updates


def by_the_host(ddl, inputs, loss, parameters, rule, mode):
    gradients = T.grad(loss, parameters)
    find = theano.function(inputs, [loss, *[theano.Out(gradient, borrow=True) for gradient in gradients]], mode=mode)
    given = [gradient.type() for gradient in gradients]
    updates = RULES[rule](given, parameters)
    update = theano.function(given, [], updates=updates, mode=mode)

    def step(x, y):
        loss, *own = find(x, y)
        update(*ddl.allreduce_arrays(own))
        return loss

    return step, updates


def trained(way, ddl, rule, mode, data, seed):
    """Return the parameters and the state of the rule, after training on ``data``; and the losses."""
    inputs, loss, parameters = model(seed)
    step, updates = way(ddl, inputs, loss, parameters, rule, mode)
    if ddl is not None:
        ddl.broadcast_parameters(updates)
    losses = [float(step(x, y)) for x, y in data]
    return [variable.get_value() for variable in updates], losses


def train(way, rule, mode):
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    alone, losses = trained(in_graph, None, rule, mode, batches(), seed=0)
    weights, own = trained(way, ddl_theano, rule, mode, batches(size, rank), seed=rank)
    vector, other = (np.concatenate([array.ravel() for array in arrays]) for arrays in (alone, weights))
    assert np.linalg.norm(vector - other) <= 1e-6 * np.linalg.norm(vector), rule
    assert ddl.allreduce(np.float64(own)) == pytest.approx(np.array(losses), rel=1e-6)
    assert losses[-1] < losses[0] / 2
    return [weight.tobytes() for weight in weights]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [2, 4])
def test_training_is_that_of_one_process(size, rule):
    first, *others = ranks.run(size, train, in_graph, rule, "FAST_RUN")
    assert all(other == first for other in others)


@pytest.mark.parametrize("way", [one_by_one, of_the_loss, by_the_host])
def test_so_it_is_in_other_ways(way):
    first, second = ranks.run(2, train, way, "momentum", "FAST_RUN")
    assert first == second


@pytest.mark.parametrize("way", [in_graph, one_by_one, by_the_host])
def test_so_it_is_in_the_mode_that_compiles_fast(way):
    first, second = ranks.run(2, train, way, "adam", "FAST_COMPILE")
    assert first == second
