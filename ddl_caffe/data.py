"""Which rank reads which rows. Data and HDF5Data layers divide them once Caffe knows its rank; this divides arrays.

Rank r of n gets rows r, r + n, r + 2n, …, as in those layers. So the batches of all ranks make a batch of one process.
"""

from __future__ import annotations

from typing import Any

import caffe
import numpy as np

import ddl
from ddl.adapter.rank_prefix import naming_rank

__all__ = ["init", "set_input_arrays", "shard"]


def init() -> None:
    """Join the job, as ``ddl.init`` does, and tell Caffe which of how many solvers this is. Collective, blocking.

    Layers that are made afterwards read their share, seeds differ by rank, and only rank 0 logs, saves and tests.
    """
    ddl.init()
    caffe.set_solver_count(ddl.size())
    caffe.set_solver_rank(ddl.rank())
    caffe.set_multiprocess(ddl.size() > 1)


@naming_rank
def shard(rows: Any) -> np.ndarray:
    """Return a copy of this rank's rows of an array that is the same on all ranks: equally many on each.

    For what a Python layer reads, or its indices. Raises ``InvalidArgument`` if there are fewer rows than ranks.
    """
    array = np.asarray(rows)
    count = len(array) // ddl.size() if array.ndim else 0
    if not count:
        raise ddl.InvalidArgument(f"shard: an array of shape {array.shape} has no row for each of {ddl.size()} ranks")
    return np.array(array[ddl.rank() :: ddl.size()][:count])


@naming_rank
def set_input_arrays(solver: Any, data: Any, labels: Any) -> None:
    """Let the MemoryData layer of ``solver.net`` read this rank's share of arrays that are the same on all ranks.

    ``data``: shape (rows, channels, height, width); ``labels``: a number for each row. Raises ``InvalidArgument``.
    """
    if np.ndim(data) != 4 or np.size(labels) != len(data):
        shapes = f"data of shape {np.shape(data)} and labels of shape {np.shape(labels)}"
        raise ddl.InvalidArgument(f"set_input_arrays: {shapes}; data need four dimensions, and each row a label")
    net = solver._ddl_input = solver.net  # kept: Caffe reads the arrays where they are, while this wrapper lives
    net.set_input_arrays(shard(data).astype(np.float32), shard(np.ravel(labels)).astype(np.float32))
