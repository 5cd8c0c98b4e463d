"""Ranks that train in Caffe are lost and join: training goes on from the last commit, and all have the same bits."""

from __future__ import annotations

import gc
import os
import tempfile
import weakref
from pathlib import Path

import caffe_solvers
import numpy as np
import pytest
import ranks
from elastic import elastic_job
from elastic.elastic_job import ElasticJob

caffe = pytest.importorskip("caffe")
lmdb = pytest.importorskip("lmdb")

pytestmark = pytest.mark.processes

BATCH = 4


def write(folder, solver, more="momentum: 0.9"):
    """Write a solver that reads rows by a thread of Caffe's, each with its number in front."""
    with lmdb.open(str(folder / "rows"), map_size=1 << 22) as store, store.begin(write=True) as transaction:
        for number in range(200):
            row = bytes([number, number % 7, number % 3, number % 11, 1])
            datum = caffe.proto.caffe_pb2.Datum(channels=1, height=1, width=5, label=number % 3, data=row)
            transaction.put(f"{number:08d}".encode(), datum.SerializeToString())
    inputs = 'layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.005 } '
    inputs += f'data_param {{ source: "{folder}/rows" batch_size: {BATCH} backend: LMDB }} }}\n'
    return caffe_solvers.write(folder, inputs=inputs, kind="norm", solver=solver, more=f"{more} snapshot: 1")


def history(state):
    """Return what the solver keeps besides its net."""
    saved = caffe.proto.caffe_pb2.SolverState.FromString(state.handler(state.solver).save(state.solver)["solverstate"])
    return [np.array(blob.data, "f") for blob in saved.history]


def keeps(path):
    import ddl
    import ddl_caffe

    state = ddl_caffe.elastic.CaffeState(path, overlap=False, epoch=3)
    state.solver.step(2)
    state.commit()
    kept = [*caffe_solvers.parameters(state.solver), *history(state)]
    state.solver.step(1)
    state.epoch = 4
    state.restore()
    assert (state.solver.iter, state.epoch) == (2, 3)
    again = [*caffe_solvers.parameters(state.solver), *history(state)]
    assert [array.tobytes() for array in again] == [array.tobytes() for array in kept]
    state.solver.step(1)
    if ddl.rank() == 0:
        state.write_snapshot()
    ddl.barrier()
    stem = Path(path).with_name("solver_iter_2.solverstate")
    solver = caffe.get_solver(path)
    ddl_caffe.restore(solver, str(stem))
    assert solver.iter == 2
    assert all((a == b).all() for a, b in zip(caffe_solvers.parameters(solver), kept))

    averaging = weakref.ref(state.solver._ddl)
    state.reset()
    gc.collect()
    assert averaging() is None and state.solver.iter == 3  # Caffe keeps callbacks for ever, but not the old net
    state.solver.step(1)
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("ddl_caffe.")]
    with pytest.raises(ddl.ConfigError, match="CaffeState: none: .*No such file"):
        ddl_caffe.elastic.CaffeState("none")


def test_what_the_state_keeps(tmp_path):
    (tmp_path / "temporary").mkdir()
    ranks.run(2, keeps, write(tmp_path, "SGD"), env={"TMPDIR": str(tmp_path / "temporary")})


def trains(path):
    import ddl
    import ddl_caffe

    state = ddl_caffe.elastic.CaffeState(path, batch=0)
    solvers = []

    def step(state):
        state.solver.step(1)
        if solvers[-1:] != [state.solver]:
            solvers[:] = [state.solver]
            numbers = np.round(state.solver.net.blobs["data"].data[..., 0].ravel() / 0.005).tolist()
            assert numbers == [ddl.rank() + ddl.size() * i for i in range(BATCH)]  # from the first row on

    def read(state):
        return [state.solver.iter, *caffe_solvers.parameters(state.solver), *history(state)]

    return elastic_job.go_on(state, step, read)


@pytest.mark.parametrize(("solver", "more"), [("Nesterov", "momentum: 0.9"), ("Adam", "momentum: 0.9 momentum2: 0.99")])
def test_a_rank_is_lost_and_another_joins(solver, more, tmp_path):
    with ElasticJob(3, trains, write(tmp_path, solver, more)) as job:
        answers = job.survives()
    iteration, *arrays = answers[0]["bits"]
    assert np.frombuffer(iteration, np.int64) == answers[0]["batch"]
    assert len(arrays) == 7 + (7 if solver == "Nesterov" else 14)
    assert all(np.frombuffer(array, "f").any() for array in arrays[-2:])
    assert not list(tmp_path.glob("*_iter_*"))


def test_ranks_that_join_at_once_read_their_own_rows(tmp_path):
    """Before it joins, each takes itself for the next rank."""
    with ElasticJob(1, trains, write(tmp_path, "SGD")) as job:
        job.wait_until(3)
        job.join()
        job.join()
        job.wait_until(3, ranks_there=3)
        first, *others = sorted(job.finish().values(), key=lambda answer: answer["rank"])
    assert [other["bits"] for other in others] == [first["bits"]] * 2
    assert first["sizes"] in ([1, 3], [1, 2, 3])
