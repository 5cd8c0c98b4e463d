"""Several all-reduces of a function run in one order on all ranks, each once, whatever else a rank's function does."""

from __future__ import annotations

import pickle
from collections import OrderedDict

import numpy as np
import pytest
import ranks

T = pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

import theano  # noqa: E402
from theano.compile.builders import OpFromGraph  # noqa: E402
from theano.ifelse import ifelse  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MODES = ["FAST_RUN", "FAST_COMPILE", ("py", "fast_run"), ("c|py", "fast_run"), ("vm", "fast_run"), ("cvm", "merge")]


def mode_of(named):
    return named if isinstance(named, str) else theano.Mode(*named)


def names_in_order(function):
    """Return the names of the all-reduces of a function, as Theano has sorted it."""
    from ddl_theano.gradients import AllReduce

    return [node.op.reduction.name for node in function.maker.fgraph.toposort() if isinstance(node.op, AllReduce)]


def outputs_in_any_order(mode):
    """The results of each rank's function are in another order, and there are more of them on the last."""
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    x = T.fvector("x")
    reduced = [ddl_theano.allreduce(x * (i + 1), name=f"number {i}") for i in range(6)]
    order = np.random.RandomState(rank).permutation(len(reduced))
    more = [reduced[2] + reduced[4], T.tanh(reduced[5])] if rank == size - 1 else []
    function = theano.function([x], [*more, *[reduced[i] for i in order]], mode=mode_of(mode))
    assert names_in_order(function) == [f"number {i}" for i in range(6)]
    for step in range(3):
        results = function(np.full(3, rank + step, "f"))[len(more) :]
        mean = (size - 1) / 2 + step
        assert [result.tolist() for result in results] == [[mean * (i + 1)] * 3 for i in order]
    return order.tolist()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_outputs_may_be_in_any_order(mode):
    orders = ranks.run(2, outputs_in_any_order, mode)
    assert orders[0] != orders[1]


def test_and_so_on_four_ranks():
    assert len({tuple(order) for order in ranks.run(4, outputs_in_any_order, "FAST_RUN")}) == 4


def without_an_optimizer():
    """Nothing orders them then: what does not go together is found out, and the communicator is as it was."""
    import ddl
    import ddl_theano

    x = T.fvector("x")
    first, second = (ddl_theano.allreduce(x * i, name=name) for i, name in ((1, "first"), (2, "second")))
    results = [first, second] if ddl.rank() else [second, first]
    function = theano.function([x], results, mode=theano.Mode("py", None))
    with pytest.raises(ddl.InvalidArgument, match="on rank 0 .*'second'; on rank 1 .*'first'. Build the same graph"):
        function(np.ones(3, "f"))
    function = theano.function([x], [first, second], mode=theano.Mode("py", None))
    assert [result[0] for result in function(np.full(3, ddl.rank(), "f"))] == [0.5, 1.0]


def test_without_an_optimizer_a_different_order_is_refused():
    ranks.run(2, without_an_optimizer)


def kinds_of_graphs():
    import ddl
    import ddl_theano

    rank = ddl.rank()
    x = T.fvector("x")
    own = np.full(3, rank, "f")

    # Used in many places, it runs once; two of the same input are two, of which only those in use run.
    mean, again, unused = (ddl_theano.allreduce(x, name=name) for name in ("mean", "again", "unused"))
    function = theano.function([x], [mean * 2, mean + again, T.tanh(mean)[0] * unused.shape[0]])
    assert names_in_order(function) == ["mean", "again"]
    assert [np.ravel(result)[0] for result in function(own)] == pytest.approx([1.0, 1.0, 3 * np.tanh(0.5)])

    # Constants are not folded: they are another rank's, too.
    function = theano.function([], ddl_theano.allreduce(T.constant(own)))
    assert function().tolist() == [0.5] * 3

    # An all-reduce that needs one that was made later.
    inner = T.fvector("inner")
    early = ddl_theano.allreduce(inner + 1, name="early")
    late = ddl_theano.allreduce(x * 2, name="late")
    function = theano.function([x], theano.clone(early, {inner: late}))
    assert names_in_order(function) == ["late", "early"] and function(own).tolist() == [2.0] * 3

    # In place, it would have to be the other way round: the state is read by the second, and overwritten for the first.
    state = theano.shared(np.full(3, rank, "f"))
    after = T.inc_subtensor(state[:2], x[:2])
    first, second = ddl_theano.allreduce(after, name="first"), ddl_theano.allreduce(state, name="second")
    function = theano.function([x], [second, first], updates=[(state, after)])
    assert names_in_order(function) == ["first", "second"]
    assert [result.tolist() for result in function(own)] == [[0.5] * 3, [1.0, 1.0, 0.5]]
    assert state.get_value().tolist() == [2.0 * rank, 2.0 * rank, rank]

    # Both are run where only one branch of a condition needs one of them.
    reduced, other = ddl_theano.allreduce(x, name="one"), ddl_theano.allreduce(x + 1, name="other")
    which = T.iscalar()
    function = theano.function([which, x], ifelse(which, reduced, other))
    assert function(1, own).tolist() == [0.5] * 3 and function(0, own).tolist() == [1.5] * 3


def test_graphs_of_all_kinds():
    ranks.run(2, kinds_of_graphs)


def in_place():
    """What nobody else needs is overwritten; what somebody does, or what is there twice, is not."""
    import ddl
    import ddl_theano
    from ddl_theano.gradients import AllReduce

    rank = ddl.rank()
    x = T.fmatrix("x")
    matrix = np.arange(4, dtype="f").reshape(2, 2) * (rank + 1)
    mean = np.arange(4, dtype="f").reshape(2, 2) * 1.5
    kept = theano.shared(matrix.copy())
    double = x * 2
    for inputs, expected, overwrites in (
        ([double, x - 1], [mean * 2, mean - 1], True),
        ([(x + 1).T, T.exp(x)[0]], [(mean + 1).T, None], True),
        ([double, double], [mean * 2, mean * 2], False),
        ([double, double.T], [mean * 2, mean.T * 2], False),
        ([x], [mean], False),
        ([kept, double], [mean, mean * 2], False),
        ([T.constant(matrix), double], [mean, mean * 2], False),
    ):
        function = theano.function([x], [*ddl_theano.allreduce(inputs), double], on_unused_input="ignore")
        (op,) = [node.op for node in function.maker.fgraph.apply_nodes if isinstance(node.op, AllReduce)]
        for _ in range(2):
            *results, own = function(matrix)
            assert all(value is None or (result == value).all() for result, value in zip(results, expected))
            assert (own == matrix * 2).all() and (matrix == np.arange(4).reshape(2, 2) * (rank + 1)).all()
            assert (kept.get_value() == matrix).all()
        if double not in inputs:
            assert op.in_place == overwrites
        alone = theano.function([x], ddl_theano.allreduce(inputs), on_unused_input="ignore")
        (op,) = [node.op for node in alone.maker.fgraph.apply_nodes if isinstance(node.op, AllReduce)]
        assert op.in_place == overwrites, inputs
        assert all(value is None or (result == value).all() for result, value in zip(alone(matrix), expected))


def test_in_place():
    ranks.run(2, in_place)


def scans(mode):
    """In a loop, all ranks make the same number of steps; its place is that of the first all-reduce in it."""
    import ddl
    import ddl_theano

    rank = ddl.rank()
    x = T.fvector("x")

    def step(before):
        mean, other = ddl_theano.allreduce(before + x), ddl_theano.allreduce(before * x, op=ddl.Sum)
        return (mean + other) if rank else (other + mean)

    before = ddl_theano.allreduce(x + 1)
    states, updates = theano.scan(step, outputs_info=T.zeros_like(x), n_steps=4)
    block = OpFromGraph([x], [ddl_theano.allreduce(x - 1)])(x)
    after = ddl_theano.allreduce(x * 3)
    mode = mode_of(mode)
    results = [before, states[-1], block, after]
    function = theano.function([x], results[:: 1 if rank else -1], updates=updates, mode=mode)
    outputs = [result.tolist() for result in function(np.full(2, rank, "f"))][:: 1 if rank else -1]
    state = 0.0
    for _ in range(4):
        state = state + 0.5 + state * 1
    assert outputs == [[1.5] * 2, [state] * 2, [-0.5] * 2, [1.5] * 2]

    gradient = theano.function([x], T.grad(states[-1].sum(), x), mode=mode)(np.full(2, rank, "f"))
    assert np.isfinite(gradient).all() and (gradient > 0).all()


# Theano's compiled scan cannot be built for Python 3.11.
@pytest.mark.parametrize("mode", ["FAST_COMPILE", ("py", "fast_run")], ids=str)
def test_scan(mode):
    ranks.run(2, scans, mode)


def gradients():
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    x, n = T.fvector("x"), T.ivector("n")
    own = np.arange(3, dtype="f") + rank
    for op, factor in ((ddl.Average, 1.0), (ddl.Sum, float(size))):
        loss = (ddl_theano.allreduce(x, op=op) ** 2).sum() * (rank + 1)
        whole = (np.arange(3) + (size - 1) / 2) * factor
        share = np.mean([2 * whole * (r + 1) for r in range(size)], axis=0) * factor
        assert theano.function([x], T.grad(loss, x))(own) == pytest.approx(share)

    # Only what the loss depends on has a gradient, of a list, and integers have none.
    total, count, unused = ddl_theano.allreduce([x, n, x * 5], op=ddl.Sum)
    by_x, by_n = T.grad((total * count).sum(), [x, n], disconnected_inputs="raise")
    function = theano.function([x, n], [by_x, by_n])
    by_x, by_n = function(own, np.full(3, 2, "int32"))
    assert by_x.tolist() == [2.0 * size * size] * 3 and by_n.tolist() == [0.0] * 3
    with pytest.raises(theano.gradient.DisconnectedInputError):
        T.grad(total.sum(), n, consider_constant=[], disconnected_inputs="raise")
    with pytest.raises(ddl.InvalidArgument, match=r"highest: averages and sums can be differentiated, Max cannot"):
        T.grad(ddl_theano.allreduce(x, op=ddl.Max, name="highest").sum(), x)


def test_gradients():
    ranks.run(2, gradients)


def pickles(folder):
    """A function goes to a file of rank 0 and into all ranks, and copies of it work, in the same order."""
    import ddl
    import ddl_theano

    rank = ddl.rank()
    x = T.fvector("x")
    weights = theano.shared(np.zeros(3, "f"))
    first, second = ddl_theano.allreduce(x, name="first"), ddl_theano.allreduce(x * 2, name="second")
    function = theano.function([x], [second, first], updates=OrderedDict([(weights, weights - first)]))
    function(np.full(3, rank, "f"))
    if rank == 0:
        folder.joinpath("function.pickle").write_bytes(pickle.dumps(function))
    ddl.barrier()
    loaded = pickle.loads(folder.joinpath("function.pickle").read_bytes())
    copied = function.copy(share_memory=False)
    assert names_in_order(loaded) == ["first", "second"]
    for compiled in (loaded, copied):
        assert [result[0] for result in compiled(np.full(3, rank, "f"))] == [1.0, 0.5]
    (kept,) = loaded.get_shared()
    assert kept.get_value().tolist() == [-1.0] * 3
    ddl.shutdown()
    ddl.init()
    assert [result[0] for result in function(np.full(3, 2 * rank, "f"))] == [2.0, 1.0]


def test_functions_can_be_pickled_and_copied(tmp_path):
    ranks.run(2, pickles, tmp_path)


class Bad(Exception):
    """What an Op of the user's raises."""


class Fails(theano.gof.Op):
    """Hands its input on; raises on this process when it is told to."""

    __props__ = ()
    now = False

    def make_node(self, x):
        return theano.gof.Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs, params=None):
        if Fails.now:
            raise Bad
        outputs[0][0] = inputs[0].copy()


def leaves_between(op, dtype, shape):
    """Rank 1 catches an exception behind the first of two all-reduces that look the same, and calls again."""
    import ddl
    import ddl_theano

    rank = ddl.rank()
    op = ddl.ReduceOp[op]
    x = T.TensorType(dtype, (False,) * len(shape))()
    first = ddl_theano.allreduce(x, op=op, name="first")
    second = ddl_theano.allreduce(Fails()(first) + x, op=op, name="second")
    function = theano.function([x], [first, second], mode="FAST_COMPILE")
    own = np.full(shape, rank + 1, dtype)
    wanted = [result.copy() for result in function(own)]
    text = "ranks are not in step (ranks 0, 2: the all-reduce 'second'; rank 1: the all-reduce 'first'). An exception"
    for _ in range(2):
        Fails.now = rank == 1
        if rank == 1:
            with pytest.raises(Bad):
                function(own)
            Fails.now = False
        with pytest.raises(ddl.InvalidState, match=rf"^\[rank {rank}/3") as caught:
            function(own)
        assert text in str(caught.value)
        results = function(own)  # all ranks have left that step out
        assert all((result == other).all() for result, other in zip(results, wanted))
    return True


@pytest.mark.faults
@pytest.mark.parametrize(
    "op, dtype, shape",
    [
        ("Average", "float32", (3,)),
        ("Sum", "int8", (3,)),
        ("Sum", "float16", (3,)),
        ("Product", "int64", (3,)),
        ("Min", "float32", (300, 300)),
        ("Max", "float64", (2, 0)),
    ],
)
def test_a_rank_that_leaves_a_function_in_the_middle_is_an_error_on_all(op, dtype, shape):
    assert ranks.run(3, leaves_between, op, dtype, shape) == [True] * 3
