"""Every update of an optimizer is noted in the rank's record, once: by ChainerMN's optimizer and by the hook."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import ranks
from own_record import steps

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")

pytestmark = pytest.mark.processes


def by_chainermn():
    import ddl_chainer

    comm = ddl_chainer.create_communicator("ddl")
    counts = []
    for name in cases.OPTIMIZERS:
        before = steps()
        cases.trained(name, comm)
        counts.append(steps() - before)
    return counts


def test_chainermn() -> None:
    expected = [cases.STEPS] * len(cases.OPTIMIZERS)  # the first update of each is a broadcast, and no step
    assert ranks.run(2, by_chainermn) == [expected, expected]


def by_the_hook():
    """A layer has two names, one is frozen, and one is not used; one update is of two backward passes."""
    import chainer

    import ddl
    import ddl_chainer

    model = chainer.links.Classifier(cases.Network(lazy=False))
    with model.init_scope():
        model.again = model.predictor.last
    ddl_chainer.broadcast_parameters(model)
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    optimizer.add_hook(ddl_chainer.AverageGradients())
    model.predictor.hidden.disable_update()
    batches = cases.batches(ddl.rank(), ddl.size())
    for number, batch in enumerate(batches):
        optimizer.update(model, *batch)
        assert steps() == number + 1
    model.cleargrads()
    for batch in batches[:2]:
        model(*batch).backward()
    assert steps() == len(batches)
    optimizer.update()
    return steps() - len(batches)


def test_the_hook() -> None:
    assert ranks.run(2, by_the_hook) == [1, 1]


def by_a_scaler():
    """A step that dynamic loss scaling leaves out, as one rank's gradient is infinite, is none."""
    import chainer

    import ddl
    import ddl_chainer

    model = chainer.links.Classifier(chainer.links.Linear(2, 2))
    ddl_chainer.broadcast_parameters(model)
    optimizer = chainer.optimizers.SGD(0.1).setup(model)
    optimizer.loss_scaling()
    optimizer.add_hook(ddl_chainer.AverageGradients())
    counts = []
    for number in range(4):
        x = np.full((1, 2), np.inf if number == 1 and ddl.rank() == 1 else 1, "f")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy's and Chainer's about it
            optimizer.update(model, x, np.zeros(1, "i"))
        counts.append(steps())
    return counts


def test_a_step_that_is_left_out() -> None:
    assert ranks.run(2, by_a_scaler) == [[1, 1, 2, 3]] * 2
