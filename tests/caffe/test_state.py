"""Snapshots are of rank 0 and for all ranks; a test by all ranks is that of one process."""

from __future__ import annotations

import os

import caffe_solvers
import numpy as np
import pytest
import ranks

caffe = pytest.importorskip("caffe")

pytestmark = pytest.mark.processes

STEPS = 3


def solver_of(folder, more=""):
    """Return a solver that every rank makes of one file; each has its rows of as many steps as asked for."""
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    inputs = caffe_solvers.memory(caffe_solvers.GLOBAL // ddl.size()) + caffe_solvers.memory(4, "TEST")
    more = f"momentum: 0.9 test_iter: 5 test_interval: 1000 test_initialization: false {more}"
    path = caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=inputs, kind="norm", solver="Nesterov", more=more)
    return caffe.get_solver(path)


def continues(folder):
    import ddl
    import ddl_caffe

    size, rank = ddl.size(), ddl.rank()
    data, labels = caffe_solvers.arrays()
    cut = STEPS * caffe_solvers.GLOBAL
    whole = solver_of(folder, "snapshot: 2")
    ddl_caffe.set_input_arrays(whole, data, labels)
    ddl_caffe.attach(whole)
    whole.step(STEPS)
    ddl_caffe.snapshot(whole)
    assert sorted(name for name in os.listdir(f"{folder}/{rank}") if "_iter_" in name) == (
        [] if rank else [f"solver_iter_{n}.{end}" for n in (2, STEPS) for end in ("caffemodel", "solverstate")]
    )
    whole.step(STEPS)

    resumed = solver_of(folder)
    ddl_caffe.set_input_arrays(resumed, data[cut:], labels[cut:])
    ddl_caffe.restore(resumed, f"{folder}/0/solver_iter_{STEPS}.solverstate")
    ddl_caffe.attach(resumed)
    assert resumed.iter == STEPS
    resumed.step(STEPS)
    for parameter, other in zip(caffe_solvers.parameters(whole), caffe_solvers.parameters(resumed)):
        assert np.array_equal(parameter, other)
    assert caffe_solvers.same_everywhere(caffe_solvers.parameters(resumed)) and size > 1


@pytest.mark.parametrize("size", [2, 4])
def test_all_ranks_go_on_from_the_snapshot_of_rank_0(size, tmp_path):
    ranks.run(size, continues, str(tmp_path))


def refuses(folder):
    import ddl
    import ddl_caffe

    rank = ddl.rank()
    solver = solver_of(folder)
    with pytest.raises(ddl.InvalidArgument, match=r"restore .*none: on rank 0, it cannot be read: .*No such file"):
        ddl_caffe.restore(solver, f"{folder}/none")
    ddl_caffe.snapshot(solver)
    good = f"{folder}/0/solver_iter_0.solverstate"
    with pytest.raises(
        ddl.InvalidArgument, match=rf"^\[rank {rank}/2 host \S+\] restore .*on rank 1, it cannot be read: .*No such"
    ):
        ddl_caffe.restore(solver, good if rank == 0 else f"{folder}/none.h5")
    with pytest.raises(ddl.InvalidArgument, match=r"on rank 1, it cannot be read: .*pars"):
        ddl_caffe.restore(solver, good if rank == 0 else f"{folder}/1/solver.prototxt")
    with open(f"{folder}/{rank}/own.h5", "w") as file:
        file.write(f"of rank {rank}")
    with pytest.raises(ddl.InvalidArgument, match=r"Copy one snapshot to all hosts"):
        ddl_caffe.restore(solver, f"{folder}/{rank}/own.h5")
    ddl.barrier()
    if rank == 0:
        os.remove(f"{folder}/0/solver_iter_0.caffemodel")
    ddl.barrier()
    with pytest.raises(
        ddl.InvalidArgument, match=r"on rank 0, it cannot be read: .*No such file.*solver_iter_0.caffemodel"
    ):
        ddl_caffe.restore(solver, good)


def test_snapshots_that_cannot_be_restored(tmp_path):
    """The ranks learn it before Caffe, which would abort."""
    ranks.run(2, refuses, str(tmp_path))


def scores(folder):
    import ddl
    import ddl_caffe

    solver = solver_of(folder)
    data, labels = caffe_solvers.arrays()
    ddl_caffe.set_input_arrays(solver, data, labels)
    ddl_caffe.attach(solver)
    tested, results = solver.test_nets[0], []
    for steps in (0, STEPS):  # before the first step all ranks get the weights of rank 0, too
        solver.step(steps)
        tested.set_input_arrays(data[:28], labels[:28])
        together = ddl_caffe.test(solver, 7)  # not a multiple of the ranks
        tested.set_input_arrays(data[:28], labels[:28])
        alone = [{name: float(value) for name, value in tested.forward().items()} for _ in range(7)]
        assert set(together) == {"loss", "accuracy"}
        for name, value in together.items():
            np.testing.assert_allclose(value, np.mean([score[name] for score in alone]), rtol=1e-6)
        results.append({name: float(value) for name, value in together.items()})
    for arguments in ({"iterations": 0}, {"iterations": 1, "net": 1}):
        with pytest.raises(ddl.InvalidArgument, match=r"test: .*there are 1 test nets"):
            ddl_caffe.test(solver, **arguments)
    return results


@pytest.mark.parametrize("size", [2, 4])
def test_a_test_by_all_ranks(size, tmp_path):
    first, *others = ranks.run(size, scores, str(tmp_path))
    assert all(other == first for other in others) and first[1]["loss"] < first[0]["loss"]
