"""Collectives on several tensors at once: they run when all ranks have come to all of them. As in Horovod.

They do for each of the tensors what the verbs of the same names in ``verbs.py`` do. Tensors of one call may differ in
shape and type. If ranks pass different numbers, shapes or types, all of them raise ``CollectiveMismatch``. Names,
arguments, types and errors are those of ``verbs.py``, too.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import tensorflow as tf

from ddl import Average
from ddl.adapter.operations import choose_op
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike
from ddl_tensorflow._collectives import (
    OperationKey,
    allreduced,
    as_written,
    cast_with,
    dense,
    gathered,
    scattered,
    scattered_by,
    slices_allreduced,
)
from ddl_tensorflow._names import op_name, part_name
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.compression import Compression

__all__ = ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter"]


@as_written
@naming_rank
def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> List[Any]:
    """All-reduce each of ``tensors`` and return the results.

    Of ``tf.IndexedSlices``, which may be among them, each is an operation of its own.
    """
    kind = choose_op(average, op, stacklevel=5)
    known = op_name(name, "grouped_allreduce", ignore_name_scope)
    sparse = [i for i, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    others = [tensor for i, tensor in enumerate(tensors) if i not in sparse]

    def run(small: List[tf.Tensor]) -> List[tf.Tensor]:
        return allreduced(small, kind, prescale_factor, postscale_factor, OperationKey(known, process_set, alone=False))

    rest = iter(cast_with(compression, others, "grouped_allreduce", run))
    return [
        slices_allreduced(tensor, kind, prescale_factor, postscale_factor, part_name(known, str(i)), process_set)
        if i in sparse
        else next(rest)
        for i, tensor in enumerate(tensors)
    ]


@as_written
@naming_rank
def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> List[tf.Tensor]:
    """All-gather each of ``tensors`` along its first dimension, which may differ by rank, and return the results."""
    known = op_name(name, "grouped_allgather", ignore_name_scope)
    key = OperationKey(known, process_set, alone=False)
    return gathered([dense(tensor, "grouped_allgather") for tensor in tensors], key)


@as_written
@naming_rank
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
) -> List[tf.Tensor]:
    """Combine each of ``tensors`` over all ranks; return this rank's share of the rows of each."""
    kind = scattered_by(op)
    known = op_name(name, "grouped_reducescatter", ignore_name_scope)

    def run(small: List[tf.Tensor]) -> List[tf.Tensor]:
        return scattered(small, kind, prescale_factor, postscale_factor, OperationKey(known, process_set, alone=False))

    return cast_with(compression, tensors, "grouped_reducescatter", run)
