"""Ranks that train in Chainer are lost and join: training goes on from the last commit, and all have the same bits."""

from __future__ import annotations

import os

import numpy as np
import pytest
import ranks
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")
chainer, chainermn = cases.chainer, cases.chainermn

pytestmark = pytest.mark.processes


def keeps():
    import ddl
    import ddl_chainer

    rank = ddl.rank()
    x, y = cases.batches()[0]
    model = chainer.links.Classifier(cases.Network(seed=rank))
    optimizer = chainer.optimizers.MomentumSGD(0.1)
    with pytest.raises(ddl.InvalidArgument, match=rf"^\[rank {rank}/2 .*MomentumSGD has no model yet; call opt"):
        ddl_chainer.elastic.ChainerState(optimizer)
    optimizer.setup(model)
    other = chainer.links.Linear(2, 3)
    state = ddl_chainer.elastic.ChainerState(optimizer, other=other, epoch=3)
    optimizer.update(model, x, y)
    assert optimizer.t == 1 and model.predictor.last.W.update_rule.state is not None
    state.restore()  # to before the first update: there is no momentum, and one layer keeps the size that it has now
    assert optimizer.t == 0 and model.predictor.last.W.update_rule.state is None
    optimizer.update(model, x, y)
    if rank == 0:
        optimizer.update(model, x, y)
        optimizer.lr, other.b.array[...] = 0.3, 5
    state.sync()
    assert (optimizer.t, optimizer.lr, other.b.array.tolist()) == (2, 0.3, [5.0] * 3)
    velocity = model.predictor.last.W.update_rule.state["v"]
    both = ddl.allgather(np.stack([velocity.ravel(), model.predictor.last.W.array.ravel()])[None])
    assert (both[0] == both[1]).all() and both[0].any()
    kept = velocity.copy()
    optimizer.update(model, x, y)
    for _ in range(2):  # what is saved stays as it is
        state.restore()
        velocity = model.predictor.last.W.update_rule.state["v"]
        assert (velocity == kept).all()
        velocity[...] = 1


def test_what_the_state_keeps():
    ranks.run(2, keeps)


def keeps_halves():
    """Weights of float16, with their full ones, and a scale of the loss that changes."""
    import ddl
    import ddl_chainer

    with chainer.using_config("dtype", np.dtype("e")):
        np.random.seed(ddl.rank())
        model = chainer.links.Linear(3, 2)
        optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
        optimizer.use_fp32_update()
        optimizer.loss_scaling()
        state = ddl_chainer.elastic.ChainerState(optimizer)
        for _ in range(1 + ddl.rank()):
            optimizer.update(lambda: chainer.functions.sum(model(np.ones((2, 3), "e")) ** 2))
        state.sync()
        rule = model.W.update_rule
        told = [rule._fp32_param.array, rule.state["v"], model.W.array, optimizer._loss_scale, rule.t, optimizer.t]
        for value in told:
            first, second = ddl.allgather(np.asarray(value, "d").ravel()[None])
            assert (first == second).all()


def test_halves():
    ranks.run(2, keeps_halves)


def differ():
    """The rank that is not like rank 0 learns it; the others go on without it where ranks may come and go."""
    import ddl
    import ddl_chainer

    rank = ddl.rank()
    for model, text in (
        (chainer.links.Linear(2, 3 + rank), r"W of the model is float32 of shape \(4, 2\), on rank 0 .*\(3, 2\)"),
        (chainer.Sequential(*[chainer.links.Linear(2, 2)] * (1 + rank)), "1/W of the model is float32 .* 0 nothing"),
    ):
        state = ddl_chainer.elastic.ChainerState(chainer.optimizers.SGD().setup(model))
        if rank == 0:
            state.sync()
        else:
            with pytest.raises(ddl.InvalidArgument, match=rf"^\[rank 1/2 host \S+\] sync: {text}"):
                state.sync()


def test_models_that_differ():
    ranks.run(2, differ)


def contents(optimizer):
    """Return the model's arrays, those of the update rules, and the numbers that a step or a schedule changes."""
    actual = getattr(optimizer, "actual_optimizer", optimizer)
    arrays = list(cases.weights(actual.target).values())
    rules = [parameter.update_rule for _, parameter in sorted(actual.target.namedparams())]
    for rule in rules:
        arrays += [array for _, array in sorted((rule.state or {}).items())]
    persistent = [norm.avg_mean for norm in actual.target.links() if hasattr(norm, "avg_mean")]
    return [*arrays, *persistent, actual.t, actual.hyperparam.alpha, *(rule.t for rule in rules)]


class Normed(chainer.Chain):
    """A layer whose size is found out, and persistent values."""

    def __init__(self, comm):
        super().__init__()
        with self.init_scope():
            self.first = chainer.links.Linear(None, 6)
            self.norm = chainermn.links.MultiNodeBatchNormalization(6, comm)
            self.last = chainer.links.Linear(6, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def trains(way):
    """The rank that joins does not know the layer's size in ChainerMN's way; it never halved the learning rate."""
    import ddl
    import ddl_chainer

    np.random.seed(ddl.rank())
    comm = ddl_chainer.create_communicator("ddl")
    model = chainer.links.Classifier(Normed(comm))
    optimizer = chainer.optimizers.Adam(0.02)
    if way == "chainermn":
        optimizer = chainermn.create_multi_node_optimizer(optimizer, comm).setup(model)
    else:
        optimizer.setup(model).add_hook(ddl_chainer.AverageGradients())
    state = ddl_chainer.elastic.ChainerState(optimizer, batch=0)

    def step(state):
        x = np.random.RandomState([state.batch, comm.rank]).randn(8, 4).astype("f")
        optimizer.update(model, x, (x[:, 0] > 0).astype("i"))
        if state.batch == 3:
            optimizer.alpha /= 2
        assert (comm.rank, comm.size, comm.intra_size) == (ddl.rank(), ddl.size(), ddl.size())

    if way == "hook":
        with chainer.using_config("train", False):
            model(np.ones((2, 4), "f"), np.zeros(2, "i"))
    answer = elastic_job.go_on(state, step, lambda state: contents(optimizer))
    hooks = {len(p.update_rule._hookable._post_update_hooks) for p in model.params()}
    assert hooks == {1}
    return {**answer, "alpha": optimizer.alpha}


@pytest.mark.parametrize("way", ["chainermn", "hook"])
def test_a_rank_is_lost_and_another_joins(way):
    with ElasticJob(3, trains, way) as job:
        answers = job.survives()
    assert [answer["alpha"] for answer in answers] == [0.01] * 3


def by_a_trainer():
    """The data set is shared out anew whenever the function is called."""
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator("ddl")
    model = chainer.links.Classifier(Normed(comm))
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(0.02), comm).setup(model)
    state = ddl_chainer.elastic.ChainerState(optimizer, batch=0)
    shares = []
    x = np.random.RandomState(1).randn(60, 4).astype("f")
    whole = chainer.datasets.TupleDataset(x, (x[:, 0] > 0).astype("i"))

    def stops(_):
        return ddl.allreduce(np.array([float(elastic_job.may_end())]), op="sum")[0] > 0

    @ddl_chainer.elastic.run
    def train(state):
        share = chainermn.scatter_dataset(whole if comm.rank == 0 else None, comm)
        shares.append(len(share))
        updater = chainer.training.StandardUpdater(chainer.iterators.SerialIterator(share, 4), optimizer)
        trainer = chainer.training.Trainer(updater, stops, out=os.environ["RANKS_FOLDER"])

        def commit(_):
            state.batch += 1
            elastic_job.reached(state.batch)
            state.commit()

        trainer.extend(commit, trigger=(1, "iteration"))
        trainer.run()

    train(state)
    bits = [np.asarray(array).tobytes() for array in contents(optimizer)]
    return {"rank": ddl.rank(), "shares": shares, "bits": bits}


def test_a_trainer():
    with ElasticJob(3, by_a_trainer) as job:
        answers = job.kill_and_replace()
    assert [answer["shares"] for answer in answers] == [[20, 30, 20], [20, 30, 20], [20]]
    assert all(answer["bits"] == answers[0]["bits"] for answer in answers)
