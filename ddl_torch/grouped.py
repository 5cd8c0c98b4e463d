"""Collectives on several tensors at once: they run when all ranks have submitted all of them. As in Horovod.

They are what their namesakes in ``verbs.py`` are, for each of the tensors, which may differ in shape and type from one
another; ranks that submit other numbers, shapes or types of them than rank 0 are ``CollectiveMismatch`` on all.
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
from ddl_torch._differentiable import differentiable
from ddl_torch._operations import Operation
from ddl_torch._tensors import Work, plain
from ddl_torch._where import Where, global_process_set
from ddl_torch.compression import Compression, casting
from ddl_torch.verbs import own_rows

__all__ = [
    *("grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_"),
    *("grouped_allgather", "grouped_allgather_async", "grouped_reducescatter", "grouped_reducescatter_async"),
]

Group = Optional[Communicator]
Tensors = Sequence[torch.Tensor]
Several = Operation[List[torch.Tensor]]


def _compress(tensors: Tensors, compression: Any, verb: str) -> Tuple[List[torch.Tensor], List[Any]]:
    cast = casting(compression)
    pairs = [cast.compress(plain(tensor, verb)) for tensor in tensors]
    return [small for small, _ in pairs], [context for _, context in pairs]


def _decompress(tensors: Tensors, contexts: Sequence[Any], compression: Any) -> List[torch.Tensor]:
    return [compression.decompress(tensor, context) for tensor, context in zip(tensors, contexts)]


def _allreduce(tensors: Tensors, op: ReduceOp, prescale: float, postscale: float, in_place: bool) -> Several:
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
    communicator: Group = None,
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


@naming_rank
def grouped_allreduce_(
    tensors: Tensors,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> List[torch.Tensor]:
    """As ``grouped_allreduce``, in place: overwrites ``tensors``, which must be contiguous, and returns them."""
    operation = _allreduce(tensors, choose_op(average, op), prescale_factor, postscale_factor, True)
    return Where(process_set, communicator).run(operation, name)


@naming_rank
def grouped_allreduce_async(
    tensors: Tensors,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[List[torch.Tensor]]:
    """As ``grouped_allreduce``, without blocking: ``wait`` of the ``Work`` returns the results, or raises."""
    operation = _allreduce(tensors, choose_op(average, op), prescale_factor, postscale_factor, False)
    return Where(process_set, communicator).start(operation, name)


@naming_rank
def grouped_allreduce_async_(
    tensors: Tensors,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[OpLike] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[List[torch.Tensor]]:
    """As ``grouped_allreduce_``, without blocking: ``wait`` of the ``Work`` returns the results, or raises."""
    operation = _allreduce(tensors, choose_op(average, op), prescale_factor, postscale_factor, True)
    return Where(process_set, communicator).start(operation, name)


def _allgather(tensors: Tensors) -> Several:
    return _operations.grouped([_operations.allgather(tensor) for tensor in tensors], "allgather")


@naming_rank
def grouped_allgather(
    tensors: Tensors,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> List[torch.Tensor]:
    """All-gather each of ``tensors`` and return the results. Blocking.

    Types, arguments and errors are those of ``allgather``.
    """
    where = Where(process_set, communicator)

    def back(gradients: Tensors) -> List[torch.Tensor]:
        return [own_rows(gradient, len(tensor), where) for gradient, tensor in zip(gradients, tensors)]

    def run(values: Tensors) -> List[torch.Tensor]:
        gathered: List[torch.Tensor] = where.run(_allgather(values), name)
        return gathered

    return list(differentiable(run, back, tensors))


@naming_rank
def grouped_allgather_async(
    tensors: Tensors,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Group = None,
) -> Work[List[torch.Tensor]]:
    """As ``grouped_allgather``, without blocking: ``wait`` of the ``Work`` returns the results, or raises."""
    return Where(process_set, communicator).start(_allgather(tensors), name)


def _reducescatter(tensors: Tensors, op: ReduceOp, prescale: float, postscale: float) -> Several:
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
    communicator: Group = None,
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


@naming_rank
def grouped_reducescatter_async(
    tensors: Tensors,
    name: Optional[str] = None,
    op: OpLike = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    communicator: Group = None,
) -> Work[List[torch.Tensor]]:
    """As ``grouped_reducescatter``, without blocking: ``wait`` of the ``Work`` returns the results, or raises."""
    operation = _reducescatter(tensors, parse_op(op, "grouped_reducescatter"), prescale_factor, postscale_factor)
    return Where(process_set, communicator).start(operation, name)
