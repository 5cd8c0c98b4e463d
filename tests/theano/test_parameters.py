"""Parameters, and the state of an update rule, become those of one rank, whatever holds them."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import ranks

T = pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

import theano  # noqa: E402
import theano.sparse  # noqa: E402
from theano.sandbox.rng_mrg import MRG_RandomStreams  # noqa: E402
from theano_rules import adam  # noqa: E402

pytestmark = pytest.mark.processes

SHAPES = [(3, 4), (), (0, 2), (300, 300)]
TYPES = ["float32", "float64", "int64", "bool"]


def contents(variables):
    return [variable.get_value().tobytes() for variable in variables]


def parameters(seed):
    """One array is stored column by column."""
    random = np.random.RandomState(seed)
    arrays = [np.asarray(random.randn(*shape) * 9).astype(dtype) for shape, dtype in zip(SHAPES, TYPES)]
    return [theano.shared(np.asfortranarray(array), f"number {i}", borrow=True) for i, array in enumerate(arrays)]


def broadcasts():
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    for root in range(size):
        for holding in (
            list,
            tuple,
            lambda variables: [variables[:2], (variables[2], variables[3])],
            lambda variables: OrderedDict((variable.name, variable) for variable in variables),
            lambda variables: OrderedDict((variable, variable + 1) for variable in variables),
            lambda variables: [(variable, variable * 2) for variable in variables],
            lambda variables: [*variables, variables[0], {"again": variables[1]}],
        ):
            own = parameters(rank)
            ddl_theano.broadcast_parameters(holding(own), root)
            assert contents(own) == contents(parameters(root))

    weights = theano.shared(np.full((2, 2), rank, "f"))
    updates = adam([weights * 2], [weights])
    for state in updates:
        state.set_value(np.full_like(state.get_value(), rank + 1))
    ddl_theano.broadcast_parameters(updates, root=1)
    assert len(updates) == 4 and all((state.get_value() == 2).all() for state in updates)
    ddl_theano.broadcast_parameters([])


def test_all_that_holds_shared_variables():
    ranks.run(3, broadcasts)


def generators():
    """Each rank drops out others, also after the broadcast."""
    import ddl
    import ddl_theano

    rank = ddl.rank()
    streams = [MRG_RandomStreams(1 + rank), T.shared_randomstreams.RandomStreams(1 + rank)]
    drawn = [stream.uniform((4,)) for stream in streams]
    weights = theano.shared(np.full(4, rank, "f"))
    updates = [(weights, weights * 2), streams[0].updates()[0][:2], *streams[1].updates()]
    ddl_theano.broadcast_parameters(updates)
    function = theano.function([], drawn, updates=updates, mode="FAST_COMPILE")
    assert weights.get_value().tolist() == [0.0] * 4
    for numbers in function():
        first, second = ddl.allgather(np.asarray(numbers)[None])
        assert (first != second).any()


def test_generators_stay_as_they_are():
    ranks.run(2, generators)


def refusals():
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    weights = theano.shared(np.ones(2, "f"), "weights")
    who = rf"^\[rank {rank}/{size} host \S+\] broadcast"
    for given, text in (
        (3, "_parameters: a int is no shared variable"),
        ([weights, weights * 2], "_parameters: a TensorVariable is no shared variable"),
        (["weights"], "_parameters: a str is no shared variable"),
        ([np.ones(2)], "_parameters: a ndarray is no shared variable"),
        ([theano.shared("text", "words")], "_parameters: words is a .*; use ddl.broadcast_object"),
        ([theano.shared(np.ones(2, "complex64"), "waves")], "_parameters: waves is a TensorType.complex64"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=who + text):
            ddl_theano.broadcast_parameters(given)
    with pytest.raises(ddl.InvalidArgument, match="root"):
        ddl_theano.broadcast_parameters([weights], root=size)
    with pytest.raises(ddl.InvalidArgument, match=who + r": on rank 0 .*\(3,\); on rank 1 .*\(4,\)"):
        ddl_theano.broadcast_parameters([weights, theano.shared(np.ones(3 + rank))])
    ddl_theano.broadcast_parameters([weights])


def test_what_cannot_be_sent_is_refused():
    ranks.run(2, refusals)
