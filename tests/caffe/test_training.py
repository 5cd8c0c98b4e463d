"""Ranks do what one process does with all their batches, whatever the solver; their weights have the same bits."""

from __future__ import annotations

import os

import caffe_solvers
import numpy as np
import pytest
import ranks

caffe = pytest.importorskip("caffe")

pytestmark = pytest.mark.processes

WAYS = {
    "momentum, decay, clipping": ("SGD", "momentum: 0.9 weight_decay: 0.01 clip_gradients: 0.5", 1, "plain"),
    "Nesterov": ("Nesterov", "momentum: 0.9 weight_decay: 0.01", 1, "plain"),
    "Adam": ("Adam", "momentum: 0.9 momentum2: 0.999 delta: 0.001", 1, "plain"),
    "iter_size": ("SGD", "momentum: 0.9 weight_decay: 0.01 clip_gradients: 0.5 iter_size: 2", 2, "plain"),
    "shared": ("SGD", "momentum: 0.9 weight_decay: 0.01", 1, "shared"),
    "shared, iter_size": ("AdaGrad", "iter_size: 3", 3, "shared"),
}


def train(folder, way, size, **how):
    """Return the weights after training: in one process for a size of 1 and no ``how``, else as a rank."""
    import ddl_caffe

    solver, more, passes, kind = WAYS[way]
    if size > 1:
        ddl_caffe.init()
    else:
        caffe.set_solver_count(1)
        caffe.set_solver_rank(0)
    inputs = caffe_solvers.memory(caffe_solvers.GLOBAL // size // passes)
    solver = caffe.get_solver(caffe_solvers.write(folder, inputs=inputs, kind=kind, solver=solver, more=more))
    data, labels = caffe_solvers.arrays()
    if size == 1:
        net = solver.net
        net.set_input_arrays(data, labels)
    else:
        ddl_caffe.set_input_arrays(solver, data, labels)
        ddl_caffe.attach(solver, **how)
    solver.step(caffe_solvers.STEPS)
    return caffe_solvers.parameters(solver)


def trains_alike(folder):
    import ddl

    folder = os.path.join(folder, str(ddl.rank()))
    for way in WAYS:
        alone = train(folder, way, 1)
        for how in ({}, {"overlap": False}, {"bucket_bytes": 0}):
            weights = train(folder, way, ddl.size(), **how)
            assert caffe_solvers.distance(alone, weights) < 1e-6, (way, how)
            assert caffe_solvers.same_everywhere(weights), (way, how)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_do_what_one_process_does(size, tmp_path):
    ranks.run(size, trains_alike, str(tmp_path))


def by_hand(folder):
    """A loop of one's own does what ``step`` does."""
    import ddl
    import ddl_caffe

    weights = []
    for way in ("step", "hand"):
        ddl_caffe.init()
        batch = caffe_solvers.GLOBAL // ddl.size()
        path = caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=caffe_solvers.memory(batch), more="momentum: 0.9")
        solver = caffe.get_solver(path)
        ddl_caffe.set_input_arrays(solver, *caffe_solvers.arrays())
        averaging = ddl_caffe.attach(solver, bucket_bytes=1)
        net = solver.net
        if way == "step":
            solver.step(3)
        else:
            for _ in range(3):
                averaging.on_start()
                net.clear_param_diffs()
                net.forward()
                net.backward()
                averaging.on_gradients_ready()
                solver.apply_update()
        weight = net.params["first"][0].data.copy()
        net.forward()
        net.backward()  # outside of a step nothing is sent
        with pytest.raises(ddl.InvalidState, match="call on_start first"):
            averaging.on_gradients_ready()
        assert caffe_solvers.same_everywhere([weight])
        weights.append(weight)
    assert np.array_equal(*weights)


def test_a_loop_of_ones_own(tmp_path):
    ranks.run(2, by_hand, str(tmp_path))


def norms(folder, kind, steps, attached, lr=0):
    """Return the statistics of BatchNorm after some steps on this rank's data."""
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    inputs = caffe_solvers.memory(caffe_solvers.GLOBAL // ddl.size())
    path = caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=inputs, kind=kind, lr=lr)
    solver = caffe.get_solver(path)
    ddl_caffe.set_input_arrays(solver, *caffe_solvers.arrays())
    random = np.random.RandomState(5)
    for blobs in solver.net.params.values():
        for blob in blobs:
            blob.data[...] = random.rand(*blob.data.shape)
    if attached:
        ddl_caffe.attach(solver)
    solver.step(steps)
    return [blob.data.copy() for blob in solver.net.params["norm"]], caffe_solvers.parameters(solver)


def averages_statistics(folder):
    import ddl

    own, _ = norms(folder, "norm", 5, attached=False)
    averaged, everything = norms(folder, "norm", 5, attached=True)
    assert caffe_solvers.same_everywhere(everything)
    assert caffe_solvers.distance([ddl.allreduce(array) for array in own], averaged) < 1e-6
    assert caffe_solvers.distance(own, averaged) > 1e-3
    before, _ = norms(folder, "frozen", 0, attached=True)
    after, everything = norms(folder, "frozen", 5, attached=True, lr=0.1)
    assert all(np.array_equal(array, other) for array, other in zip(before, after))
    assert caffe_solvers.same_everywhere(everything)


def test_statistics_of_batch_norm(tmp_path):
    ranks.run(3, averages_statistics, str(tmp_path))
