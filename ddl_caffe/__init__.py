"""DDL for Caffe: averages gradients over the ranks of a job; a script changes two lines.

>>> import caffe, ddl_caffe
>>> ddl_caffe.init()                    # before the solver: its layers read this rank's share of the data
>>> solver = caffe.get_solver("solver.prototxt")
>>> ddl_caffe.attach(solver)
>>> solver.step(solver.param.max_iter)

``ddl-caffe train --solver=solver.prototxt``, run by ddlrun, does it without a script.
"""

from __future__ import annotations

try:
    import caffe  # noqa: F401 (first of all, to say what is missing)
except ModuleNotFoundError as error:
    if error.name != "caffe":
        raise
    raise ModuleNotFoundError(
        "ddl_caffe needs Caffe's Python module (python3-caffe of Debian 11, or environments/caffe.sh)", name="caffe"
    ) from None

from ddl_caffe import elastic
from ddl_caffe.averaging import Averaging, attach
from ddl_caffe.data import init, set_input_arrays, shard
from ddl_caffe.state import restore, snapshot, test

__all__ = ["Averaging", "attach", "elastic", "init", "restore", "set_input_arrays", "shard", "snapshot", "test"]
