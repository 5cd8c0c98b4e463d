"""Solvers of a job, their snapshots and tests: rank 0 writes, all ranks read, and each tests some of the batches."""

from __future__ import annotations

import hashlib
import os
import tempfile
from typing import Any, Dict

import caffe
import numpy as np
from caffe.proto import caffe_pb2
from google.protobuf import text_format

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.adapter.rank_prefix import naming_rank

__all__ = ["parameters_of", "restore", "snapshot", "solver_of", "test"]


def parameters_of(path: str) -> Any:
    """Return the parameters that a solver's prototxt has, as Caffe reads them; they say where snapshots go.

    Raises ``OSError``, ``ValueError`` and protobuf's ``ParseError``.
    """
    param = caffe_pb2.SolverParameter()
    with open(path, encoding="utf-8") as file:
        text_format.Parse(file.read(), param)
    name = os.path.splitext(path)[0]
    if os.path.isdir(param.snapshot_prefix):
        param.snapshot_prefix = os.path.join(param.snapshot_prefix, os.path.basename(name))
    param.snapshot_prefix = param.snapshot_prefix or name
    return param


def solver_of(param: Any) -> Any:
    """Return a solver with these parameters; Caffe reads them from a file only."""
    with tempfile.NamedTemporaryFile("w", suffix=".prototxt") as file:
        file.write(text_format.MessageToString(param))
        file.flush()
        return caffe.get_solver(file.name)


def snapshot(solver: Any) -> None:
    """Let rank 0 write ``solver.snapshot()``, and the others wait for it. Collective, blocking.

    In a step no call is needed: ``snapshot`` in the solver's prototxt lets rank 0 write.
    """
    if ddl.rank() == 0:
        solver.snapshot()
    ddl.barrier()


@naming_rank
def restore(solver: Any, path: str) -> None:
    """Restore weights and the solver's state from a snapshot, on all ranks. Collective, blocking.

    ``path``: a .solverstate or .solverstate.h5, which every rank reads. Raises ``InvalidArgument``, on all ranks, if
    one of them cannot, or if the files differ.
    """
    digest, mistake = hashlib.sha256(), ""
    try:
        with open(path, "rb") as file:
            content = file.read()
        digest.update(content)
        if not path.endswith(".h5"):
            with open(caffe_pb2.SolverState.FromString(content).learned_net, "rb") as file:
                digest.update(file.read())
    except Exception as error:
        mistake = f"it cannot be read: {error}"
    check_consistent(ddl.world(), f"restore {path}", [digest.hexdigest()], "Copy one snapshot to all hosts.", mistake)
    solver.restore(path)


@naming_rank
def test(solver: Any, iterations: int, *, net: int = 0) -> Dict[str, np.ndarray]:
    """Test the weights by ``iterations`` batches of ``solver.test_nets[net]``; return the mean of each output, float64.

    The ranks share out the batches: each skips those of others once its data layers have read them. The result, on
    all ranks, is that of one process. Collective, blocking. Raises ``InvalidArgument``.
    """
    nets = list(solver.test_nets)
    if iterations < 1 or not 0 <= net < len(nets):
        raise ddl.InvalidArgument(f"test: iterations={iterations}, net={net}; there are {len(nets)} test nets")
    if hasattr(solver, "_ddl"):
        solver._ddl.broadcast()
    tested = nets[net]
    tested.share_with(solver.net)
    sources = [index for index, name in enumerate(tested._layer_names) if not tested.bottom_names[name]]
    totals = {name: np.zeros(tested.blobs[name].data.shape) for name in tested.outputs}
    for iteration in range(iterations):
        if iteration % ddl.size() == ddl.rank():
            for name, values in tested.forward().items():
                totals[name] += values
        else:
            for index in sources:
                tested._forward(index, index)
    return {name: ddl.allreduce(total, op=ddl.Sum) / iterations for name, total in totals.items()}
