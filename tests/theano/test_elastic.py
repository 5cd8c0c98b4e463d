"""Ranks that train in Theano are lost and join: training goes on from the last commit, and all have the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import ranks
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

T = pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

import theano  # noqa: E402
from theano_rules import RULES  # noqa: E402

pytestmark = pytest.mark.processes


def weights_of(rank):
    return theano.shared(np.random.RandomState(rank).randn(5, 3).astype("f"), "weights")


def trains(rule, one_by_one):
    """The rank that joins builds the same function, whose all-reduces it has never run."""
    import ddl
    import ddl_theano

    weights, bias = weights_of(ddl.rank()), theano.shared(np.zeros(3, "f"), "bias")
    x, y = T.fmatrix("x"), T.fmatrix("y")
    loss = T.mean((T.dot(x, weights) + bias - y) ** 2)
    gradients = T.grad(loss, [weights, bias])
    averages = [ddl_theano.allreduce(g) for g in gradients] if one_by_one else ddl_theano.allreduce(gradients)
    updates = RULES[rule](averages, [weights, bias])
    function = theano.function([x, y], loss, updates=updates)
    state = ddl_theano.elastic.TheanoState(updates, batch=0)

    def step(state):
        rows = np.random.RandomState([state.batch, ddl.rank()]).randn(8, 5).astype("f")
        function(rows, rows[:, :3])

    return elastic_job.go_on(state, step, lambda state: [variable.get_value() for variable in updates])


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "one_by_one"), [("momentum", False), ("adam", True)])
def test_a_rank_is_lost_and_another_joins(rule, one_by_one):
    with ElasticJob(3, trains, rule, one_by_one) as job:
        answers = job.survives()
    assert len(answers[0]["bits"]) == (4 if rule == "momentum" else 7)


def keeps():
    """A generator's state is no part of it; what is not contiguous, empty or a number is."""
    import ddl
    import ddl_theano

    rank = ddl.rank()
    weights, number = weights_of(rank), theano.shared(np.float32(rank), "number")
    empty, columns = theano.shared(np.zeros((0, 2), "f")), theano.shared(np.asfortranarray(np.full((2, 3), rank, "i8")))
    stream = T.shared_randomstreams.RandomStreams(1)
    state = ddl_theano.elastic.TheanoState([weights, number, empty, columns, *stream.updates()], epoch=3)
    assert state.variables == [weights, number, empty, columns]
    number.set_value(np.float32(7))
    columns.get_value(borrow=True)[...] = 9
    state.epoch = 4
    state.restore()
    assert (number.get_value(), columns.get_value().tolist(), state.epoch) == (rank, [[rank] * 3] * 2, 3)
    state.sync()
    assert (number.get_value(), columns.get_value().tolist()) == (0, [[0] * 3] * 2)
    assert weights.get_value().tobytes() == weights_of(0).get_value().tobytes()
    with pytest.raises(ddl.InvalidArgument, match=rf"^\[rank {rank}/2 host \S+\] TheanoState: a int is no shared"):
        ddl_theano.elastic.TheanoState([3])
    with pytest.raises(ddl.InvalidArgument, match="'handler' is the name of one of its own"):
        ddl_theano.elastic.TheanoState([number], handler=1)
    with pytest.raises(ddl.InvalidArgument, match=r"on rank 0 .*\(2,\); on rank 1 .*\(3,\)"):
        ddl_theano.elastic.TheanoState([theano.shared(np.ones(2 + rank))]).sync()


def test_what_the_state_keeps():
    ranks.run(2, keeps)
