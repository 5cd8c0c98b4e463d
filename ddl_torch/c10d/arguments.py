"""Turns c10d's arguments into those of ``ddl``: reduction operators, the memory of tensors, and sparse tensors."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

import ddl
from ddl import InvalidArgument, ReduceOp
from ddl.adapter.operations import Waitable
from ddl_torch._tensors import KINDS, carrier, plain
from ddl_torch.sparse import check_same_kind, sparse_sum

__all__ = [
    *("ENDED", "Finish", "Part"),
    *("bitwise", "elements", "in_place", "moved", "op_of", "reduction", "sparse_allreduce"),
]


Finish = Callable[[], object]  #: what is left to do once the data is there
#: What is under way (None: it has ended), and what is left to do then.
Part = Tuple[Optional[Waitable], Optional[Finish]]
ENDED: Part = (None, None)  #: of a call that blocks and writes where the result belongs
_REDUCTIONS = (
    (dist.ReduceOp.SUM, ddl.Sum),
    (dist.ReduceOp.AVG, ddl.Average),
    (dist.ReduceOp.PRODUCT, ddl.Product),
    (dist.ReduceOp.MIN, ddl.Min),
    (dist.ReduceOp.MAX, ddl.Max),
)
_BITWISE = (
    (dist.ReduceOp.BAND, torch.bitwise_and),
    (dist.ReduceOp.BOR, torch.bitwise_or),
    (dist.ReduceOp.BXOR, torch.bitwise_xor),
)


def op_of(opts: Any) -> Any:
    """Return the reduction operator of a verb's options."""
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


def bitwise(op: Any) -> Optional[Callable[..., torch.Tensor]]:
    """Return what combines two tensors by a bitwise operator, None if ``op`` is none."""
    if op == dist.ReduceOp.SUM:  # mostly; each comparison takes 0.15 us
        return None
    return next((combine for known, combine in _BITWISE if op == known), None)


def reduction(op: Any, tensor: torch.Tensor) -> Tuple[ReduceOp, Any]:
    """Return DDL's operator, and what to multiply by first, or None. ``InvalidArgument`` if it is not defined."""
    for known, ddl_op in _REDUCTIONS:  # the usual ones come first
        if op == known and (ddl_op in (ddl.Sum, ddl.Average) or not tensor.is_complex()):
            return ddl_op, None
    if op == dist.ReduceOp.PREMUL_SUM:
        return ddl.Sum, op.__getstate__()[1]
    raise InvalidArgument(f"{op} is not defined for tensors of type {tensor.dtype}")


def in_place(tensor: torch.Tensor, verb: str) -> Tuple[torch.Tensor, Optional[Finish]]:
    """Return memory for the result that belongs into ``tensor``, with its contents, and what brings it there."""
    own = plain(tensor, verb)
    if tensor.is_contiguous() and (own is tensor or not (tensor.is_conj() or tensor.is_neg())):
        return own, None
    copy = own.clone(memory_format=torch.contiguous_format)
    return copy, lambda: tensor.detach().copy_(copy)


def moved(tensor: torch.Tensor, verb: str) -> torch.Tensor:
    """Return the memory of ``tensor`` for a verb that only moves it; if it is contiguous, the very same memory."""
    own = plain(tensor, verb).contiguous()
    return own if own.dtype in KINDS else own.view(carrier(own.dtype, verb))


def elements(tensor: torch.Tensor, splits: Sequence[int], size: int) -> List[int]:
    """Return the elements of the parts of ``tensor``, which are given in rows; none given: equal parts."""
    rows = list(splits) or [tensor.shape[0] // size] * size
    if len(rows) != size or min(rows) < 0 or sum(rows) != tensor.shape[0]:
        raise InvalidArgument(f"all_to_all: splits {rows} must be {size} numbers that sum to {tensor.shape[0]} rows")
    width = tensor.numel() // max(1, tensor.shape[0])
    return [count * width for count in rows]


def sparse_allreduce(communicator: ddl.Communicator, tensor: torch.Tensor, op: Any) -> Part:
    """Sum or average a sparse (COO) tensor over all ranks, in place: DDP does so for embeddings with sparse gradients.

    ``tensor``: its shape, its type and its sparse dimensions are the same on all ranks, which is compared first; its
    number of entries need not be. Raises ``InvalidArgument``: on all ranks if tensors differ.
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
