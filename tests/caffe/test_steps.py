"""Every iteration of a solver is noted in the rank's record, once, whatever its iter_size is."""

from __future__ import annotations

import caffe_solvers
import pytest
import ranks
from own_record import steps

caffe = pytest.importorskip("caffe")

pytestmark = pytest.mark.processes


def counts_steps(folder):
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    for passes in (1, 3):
        inputs = caffe_solvers.memory(caffe_solvers.GLOBAL // ddl.size() // passes)
        path = caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=inputs, more=f"iter_size: {passes}")
        solver = caffe.get_solver(path)
        ddl_caffe.set_input_arrays(solver, *caffe_solvers.arrays())
        averaging = ddl_caffe.attach(solver)
        before = steps()
        solver.step(2)
        solver.step(3)
        assert steps() == before + 5
    before = steps()
    averaging.on_start()
    for _ in range(3):
        solver.net.clear_param_diffs()
        solver.net.forward()
        solver.net.backward()
        assert steps() == before
    averaging.on_gradients_ready()
    solver.apply_update()
    assert steps() == before + 1


def test_each_iteration_is_a_step(tmp_path) -> None:
    ranks.run(2, counts_steps, str(tmp_path))
