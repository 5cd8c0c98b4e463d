"""What goes wrong in training comes out as DDL's error, on every rank that is left; nothing hangs."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import ranks

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")
chainer, chainermn = cases.chainer, cases.chainermn

pytestmark = pytest.mark.processes


def by_trainer(comm, step):
    """Train by ChainerMN; ``step(number)`` is called before each update."""
    model = chainer.links.Classifier(cases.Network())
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm).setup(model)
    x, y = cases.batches()[0]
    shard = chainermn.scatter_dataset(chainer.datasets.TupleDataset(x, y), comm)
    updater = chainer.training.StandardUpdater(chainer.iterators.SerialIterator(shard, 4), optimizer)
    trainer = chainer.training.Trainer(updater, (9, "iteration"), out=os.devnull)
    trainer.extend(lambda trainer: step(trainer.updater.iteration), trigger=(1, "iteration"), name="step")
    trainer.run()


def by_hook(comm, step):
    import ddl_chainer

    model = chainer.links.Classifier(cases.Network(lazy=False))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    ddl_chainer.broadcast_parameters(model)
    optimizer.add_hook(ddl_chainer.AverageGradients())
    for number in range(9):
        step(number)
        optimizer.update(model, *cases.batches()[0])


def by_functions(comm, step):
    for number in range(9):
        step(number)
        x = chainer.Variable(np.ones((2, 3), "f"))
        chainer.functions.sum(sum(chainermn.functions.allgather(comm, x))).backward()


def loses_a_rank(way):
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()

    def step(number):
        if number == 4 and comm.rank == 1:
            os._exit(7)

    with pytest.raises(ddl.PeerLost, match=rf"^\[rank {comm.rank}/3.*lost rank 1") as caught:
        way_of(way)(comm, step)
    with pytest.raises(ddl.PeerLost):  # and again
        comm.allreduce_obj(1)
    return type(caught.value).__name__


def way_of(name):
    return {"trainer": by_trainer, "hook": by_hook, "functions": by_functions}[name]


@pytest.mark.faults
@pytest.mark.parametrize("way", ["trainer", "hook", "functions"])
def test_a_rank_that_dies_is_named(way):
    first, died, third = ranks.run(3, loses_a_rank, way, may_die=[1])
    assert died == 7 and first == third == "PeerLost"


def updates_alone():
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()

    def step(number):
        if number == 4 and comm.rank == 1:
            comm.allreduce(np.ones(3))

    with pytest.raises(ddl.CollectiveMismatch, match="do not match: rank . called .* rank . called"):
        by_hook(comm, step)


@pytest.mark.faults
def test_ranks_that_do_different_things_are_told():
    ranks.run(2, updates_alone)


def waits_in_vain():
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    if comm.rank == 0:
        ddl.world().set_timeout(1.0)  # of this rank alone, which is not to be blamed
        with pytest.raises(ddl.CollectiveTimeout, match="rank 1"):
            comm.recv(1, tag=2)
    else:
        with pytest.raises(ddl.CommunicatorError):
            comm.recv_obj(0)


@pytest.mark.faults
def test_a_message_that_nobody_sends_ends_at_its_deadline():
    ranks.run(2, waits_in_vain)


def hook_refuses():
    import ddl
    import ddl_chainer

    me = rf"^\[rank {ddl.rank()}/2.*AverageGradients: "
    batch = cases.batches()[0]

    def optimizer_of(model, *hooks):
        optimizer = chainer.optimizers.SGD().setup(model)
        for hook in hooks:
            optimizer.add_hook(hook)
        return optimizer

    clip, average = chainer.optimizer_hooks.GradientClipping(1), ddl_chainer.AverageGradients
    model = chainer.links.Classifier(cases.Network(seed=ddl.rank()))
    with pytest.raises(ddl.InvalidArgument, match=me + "the hook 'GradientClipping' comes before it"):
        optimizer_of(model, clip, average()).update(model, *batch)
    with pytest.raises(ddl.InvalidArgument, match=r"on rank 0 there is /predictor/\w+.*broadcast_parameters"):
        optimizer_of(model, average(), clip).update(model, *batch)
    ddl_chainer.broadcast_parameters(model)
    optimizer_of(model, average(), clip).update(model, *batch)
    assert ddl.allreduce(model.predictor.last.W.array).tolist() == model.predictor.last.W.array.tolist()


def test_the_hook_refuses_what_would_be_wrong():
    ranks.run(2, hook_refuses)


def test_the_hook_needs_a_job():
    import ddl
    import ddl_chainer

    with pytest.raises(ddl.InvalidState, match="init"):
        ddl_chainer.AverageGradients()


class Elsewhere:
    """A model whose parameter is no numpy array, as on a GPU."""

    array = memoryview(b"")

    def namedparams(self, include_uninit):
        return [("/W", self)]


def test_other_arrays_are_refused():
    import ddl
    from ddl_chainer.model import parameters_of

    with pytest.raises(ddl.InvalidArgument, match="parameter /W is a memoryview, no numpy array: .*to_device"):
        parameters_of(Elsewhere())


def scales(rank_of_nan):
    """One rank's gradient overflows: with dynamic loss scaling all ranks skip that step."""
    import ddl
    import ddl_chainer

    model = chainer.links.Classifier(chainer.links.Linear(2, 2))
    ddl_chainer.broadcast_parameters(model)
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    optimizer.loss_scaling()
    optimizer.add_hook(ddl_chainer.AverageGradients())
    before = model.predictor.W.array.copy()
    x = np.full((1, 2), np.inf if ddl.rank() == rank_of_nan else 1, "f")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy's and Chainer's about it
        optimizer.update(model, x, np.zeros(1, "i"))
    return (model.predictor.W.array == before).all(), optimizer._loss_scale


@pytest.mark.parametrize("nan", [None, 0, 1])
def test_dynamic_loss_scaling_skips_on_all_ranks(nan):
    first, second = ranks.run(2, scales, nan)
    assert first == second and first[0] == (nan is not None)


class Bad(Exception):
    """What an update rule of the user's raises."""


def optimizer_by(way, comm):
    import ddl_chainer

    model = chainer.links.Classifier(cases.Network(lazy=False))
    if way == "communicator":
        optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(), comm).setup(model)
        optimizer.update(model, *cases.batches()[0])  # the first one only broadcasts
    else:
        optimizer = chainer.optimizers.MomentumSGD().setup(model)
        ddl_chainer.broadcast_parameters(model)
        optimizer.add_hook(ddl_chainer.AverageGradients())
    return optimizer, model


def leaves_an_update(way, which):
    """Rank 1 catches an exception in the update of parameter ``which``, when the averages have come, and goes on."""
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    optimizer, model = optimizer_by(way, comm)
    batch = cases.batches()[0]
    optimizer.update(model, *batch)

    def bad(rule, parameter):
        raise Bad

    rules = [parameter.update_rule for parameter in model.params()]
    if comm.rank == 1:
        rules[which].add_hook(bad, "bad")
        with pytest.raises(Bad):
            optimizer.update(model, *batch)
        rules[which].remove_hook("bad")
    else:
        optimizer.update(model, *batch)
    # A hook before the update: its parameter and those behind it have not been updated.
    begun, left = 2 * len(rules), len(rules) - range(len(rules))[which]
    text = rf"gradients: ranks are not in step \(ranks 0, 2: {begun} .*; rank 1: {begun - left} .* ended\)\. An exc"
    for _ in range(2):  # also when it is caught
        with pytest.raises(ddl.InvalidState, match=rf"^\[rank {comm.rank}/3.*{text}"):
            optimizer.update(model, *batch)
    if way == "communicator":
        comm.bcast_data(model)
    else:
        ddl_chainer.broadcast_parameters(model)
        optimizer.remove_hook("AverageGradients")
        optimizer.add_hook(ddl_chainer.AverageGradients())
    optimizer.update(model, *batch)
    return True


@pytest.mark.faults
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("way", ["communicator", "hook"])
def test_an_update_that_one_rank_has_left_is_an_error_on_all(way, which):
    assert ranks.run(3, leaves_an_update, way, which) == [True] * 3


def counts_copies():
    """Copies of a model and of its rules, and a second communicator, do not disturb the numbers."""
    import copy
    import pickle

    import ddl_chainer

    comm, other = ddl_chainer.create_communicator(), ddl_chainer.create_communicator()
    optimizer, model = optimizer_by("communicator", comm)
    batch = cases.batches()[0]
    optimizer.update(model, *batch)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for use in (comm, other, comm):
            again.cleargrads()
            again(*batch).backward()
            use.multi_node_mean_grad(again)
            for parameter in again.params():
                parameter.update()  # by the rules that have been copied
    optimizer.update(model, *batch)
    return True


def test_copies_of_a_model_are_counted_for_themselves():
    assert ranks.run(2, counts_copies) == [True] * 2
