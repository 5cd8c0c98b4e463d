"""Ranks come to what one process does with all of the batch: with ChainerMN's optimizer, and with the hook alone."""

from __future__ import annotations

import numpy as np
import pytest
import ranks

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def with_hook(name, dtype):
    """As ``cases.trained``, by a loop without ChainerMN."""
    import chainer

    import ddl
    import ddl_chainer

    with chainer.using_config("dtype", np.dtype(dtype)):
        model = chainer.links.Classifier(cases.Network(seed=ddl.rank()))
        batches = cases.batches(ddl.rank(), ddl.size(), dtype)
        model(*batches[0])  # all layers have their sizes now
        ddl_chainer.broadcast_parameters(model)
        optimizer = cases.OPTIMIZERS[name]().setup(model)
        optimizer.add_hook(ddl_chainer.AverageGradients())
        for hook in cases.hooks(name):
            optimizer.add_hook(hook)
        for batch in batches:
            optimizer.update(model, *batch)
        return cases.weights(model)


def trains(name, way, dtype):
    import ddl_chainer

    if way == "hook":
        return with_hook(name, dtype)
    return cases.trained(name, ddl_chainer.create_communicator("ddl"), dtype)


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("way", ["chainermn", "hook"])
@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_two_ranks(name, way, dtype):
    compare(2, name, way, dtype)


@pytest.mark.parametrize("way", ["chainermn", "hook"])
@pytest.mark.parametrize("name", cases.OPTIMIZERS)
def test_four_ranks(name, way):
    compare(4, name, way, "f")


@pytest.mark.parametrize("way", ["chainermn", "hook"])
def test_two_hosts(way):
    compare(4, "momentum", way, "f", env_of=lambda rank: {"DDL_HOST_ID": "aabb"[rank]})


def compare(size, name, way, dtype, **how):
    alone = cases.trained(name, None, dtype)
    first, *others = ranks.run(size, trains, name, way, dtype, **how)
    assert first.keys() == alone.keys()
    largest = max(np.abs(expected).max() for expected in alone.values())
    for key, expected in alone.items():
        assert first[key].dtype == expected.dtype == np.dtype(dtype)
        assert np.abs(first[key] - expected).max() <= (1e-6 if dtype == "f" else 1e-12) * largest, key
        assert all((other[key].view(np.uint8) == first[key].view(np.uint8)).all() for other in others), key
    assert np.abs(alone["/predictor/last/W"] - cases.weights(cases.Network())["/last/W"]).max() > 1e-3  # it has trained
