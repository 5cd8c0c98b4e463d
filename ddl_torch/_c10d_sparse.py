"""``all_reduce`` of sparse (COO) tensors for c10d, as DDP asks for it where an embedding has sparse gradients."""

from __future__ import annotations

from typing import Any

import torch

import ddl
from ddl import Communicator, InvalidArgument
from ddl_torch._c10d_arguments import Part, reduction
from ddl_torch.sparse import check_same_kind, sparse_sum

__all__ = ["allreduce"]


def allreduce(communicator: Communicator, tensor: torch.Tensor, op: Any) -> Part:
    """Sum or average ``tensor`` over all ranks, in place (sparse.py). What tensors are is compared first.

    ``tensor``: its shape, its type and its sparse dimensions are the same on all ranks, its number of
    entries need not be. Raises ``InvalidArgument``: on all ranks if tensors differ.
    """
    if tensor._is_view():  # to write it would change the view only; torch makes one of a complex tensor
        raise InvalidArgument(
            "all_reduce: the tensor is a view of a sparse one, or complex, and cannot be written; pass tensor.clone(), "
            "real and imaginary part each by itself"
        )
    own = tensor.detach().coalesce()
    ddl_op, factor = reduction(op, own.values())
    inexact = own.is_floating_point() or own.is_complex()
    if ddl_op not in (ddl.Sum, ddl.Average) or (ddl_op == ddl.Average and not inexact):
        raise InvalidArgument(f"all_reduce: sparse tensors of type {tensor.dtype} have no {op}; use SUM")
    check_same_kind(communicator, own, "all_reduce")
    operation = sparse_sum(own if factor is None else own * factor, ddl_op, communicator.size)
    work = operation.start(communicator)

    def finish() -> None:
        tensor.copy_(operation.finish(work.wait()))

    return work, finish
