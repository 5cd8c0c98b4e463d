"""Collectives on several tensors at once: they run when all ranks have submitted all of them. As in Horovod.

They do for each of the tensors what the verbs of the same names in ``verbs.py`` do. Tensors of one call may differ in
shape and type. If ranks submit different numbers, shapes or types, all of them raise ``CollectiveMismatch``.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

import ddl
from ddl import Average, Communicator, ReduceOp
from ddl.adapter.operations import choose_op
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.reduce_op import OpLike, parse_op
from ddl_torch import _operations
from ddl_torch._forms import Submission, asynchronous, blocking, differentiable, in_place, of_new_tensors
from ddl_torch._operations import Operation
from ddl_torch._process_set import Where, global_process_set
from ddl_torch._tensors import plain
from ddl_torch.compression import Compression, casting
from ddl_torch.verbs import own_rows

__all__ = [
    *("grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_"),
    *("grouped_allgather", "grouped_allgather_async", "grouped_reducescatter", "grouped_reducescatter_async"),
]

Tensors = Sequence[torch.Tensor]
GroupedOperation = Operation[List[torch.Tensor]]


def _as_list(tensors: Tensors) -> List[torch.Tensor]:
    return list(tensors)


def _compress(tensors: Tensors, compression: Any, verb: str) -> Tuple[List[torch.Tensor], List[Any]]:
    cast = casting(compression)
    pairs = [cast.compress(plain(tensor, verb)) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def _decompress(tensors: Tensors, contexts: Sequence[Any], compression: Any) -> List[torch.Tensor]:
    cast = casting(compression)
    return [cast.decompress(tensor, context) for tensor, context in zip(tensors, contexts)]


def _allreduce(tensors: Tensors, op: ReduceOp, prescale: float, postscale: float, in_place: bool) -> GroupedOperation:
    operations = [_operations.allreduce(tensor, op, prescale, postscale, in_place) for tensor in tensors]
    return _operations.grouped(operations, "allreduce")


@naming_rank
def grouped_allreduce(
    tensors: Tensors,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> List[torch.Tensor]:
    """All-reduce each of ``tensors`` and return the results. Blocking.

    Types, arguments and errors are those of ``allreduce``.
    """
    kind = choose_op(average, op)
    where = Where(process_set, communicator)

    def run(values: Tensors) -> List[torch.Tensor]:
        small, contexts = _compress(values, compression, "allreduce")
        results = where.run(_allreduce(small, kind, prescale_factor, postscale_factor, False), name)
        return _decompress(results, contexts, compression)

    def back(gradients: Tensors) -> List[torch.Tensor]:
        return where.run(_allreduce(gradients, kind, prescale_factor, postscale_factor, False), None)

    return list(differentiable(run, back, tensors))


def _grouped_allreduce(
    in_place: bool,
    tensors: Tensors,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[List[torch.Tensor]]:
    kind = choose_op(average, op)

    def operation(values: Tensors) -> GroupedOperation:
        return _allreduce(values, kind, prescale_factor, postscale_factor, in_place)

    return Submission(operation, tensors, Where(process_set, communicator), name)


grouped_allreduce_ = blocking(
    in_place(_grouped_allreduce, True),
    "grouped_allreduce_",
    "As ``grouped_allreduce``, in place: overwrites ``tensors``, which must be contiguous, and returns them.",
)
grouped_allreduce_async = asynchronous(in_place(_grouped_allreduce, False), "grouped_allreduce_async")
grouped_allreduce_async_ = asynchronous(in_place(_grouped_allreduce, True), "grouped_allreduce_async_")


def _allgather(tensors: Tensors) -> GroupedOperation:
    return _operations.grouped([_operations.allgather(tensor) for tensor in tensors], "allgather")


def _grouped_allgather(
    tensors: Tensors,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[List[torch.Tensor]]:
    where = Where(process_set, communicator)

    def backward(gradients: Tensors) -> List[torch.Tensor]:
        return [own_rows(gradient, len(tensor), where) for gradient, tensor in zip(gradients, tensors)]

    return Submission(_allgather, tensors, where, name, backward)


grouped_allgather = of_new_tensors(
    _grouped_allgather,
    "grouped_allgather",
    """All-gather each of ``tensors`` and return the results. Blocking.

    Types, arguments and errors are those of ``allgather``.
    """,
    _as_list,
)
grouped_allgather_async = asynchronous(_grouped_allgather, "grouped_allgather_async")


def _reducescatter(tensors: Tensors, op: ReduceOp, prescale: float, postscale: float) -> GroupedOperation:
    operations = [_operations.reducescatter(tensor, op, prescale, postscale) for tensor in tensors]
    return _operations.grouped(operations, "reducescatter")


@naming_rank
def grouped_reducescatter(
    tensors: Tensors,
    name: Optional[str] = None,
    compression: Any = Compression.none,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Optional[Communicator] = None,
) -> List[torch.Tensor]:
    """Reduce-scatter each of ``tensors`` and return the results. Blocking.

    Types, arguments and errors are those of ``reducescatter``.
    """
    kind = parse_op(op, "grouped_reducescatter")
    where = Where(process_set, communicator)

    def run(values: Tensors) -> List[torch.Tensor]:
        small, contexts = _compress(values, compression, "reducescatter")
        results = where.run(_reducescatter(small, kind, prescale_factor, postscale_factor), name)
        return _decompress(results, contexts, compression)

    def back(gradients: Tensors) -> List[torch.Tensor]:
        factor = prescale_factor * postscale_factor * (where.size if kind == ddl.Sum else 1)
        return where.run(_allgather([gradient * factor for gradient in gradients]), None)

    return list(differentiable(run, back, tensors))


def _grouped_reducescatter(
    tensors: Tensors,
    name: Optional[str] = None,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Optional[Communicator] = None,
) -> Submission[List[torch.Tensor]]:
    kind = parse_op(op, "grouped_reducescatter")

    def operation(values: Tensors) -> GroupedOperation:
        return _reducescatter(values, kind, prescale_factor, postscale_factor)

    return Submission(operation, tensors, Where(process_set, communicator), name)


grouped_reducescatter_async = asynchronous(_grouped_reducescatter, "grouped_reducescatter_async")
