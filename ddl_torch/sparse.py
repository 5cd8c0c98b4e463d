"""All-reduce of sparse tensors: every rank gets the entries of all ranks and adds up those of one place.

Only what a rank has travels, so this pays as long as few places are in use on all ranks together.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import torch

import ddl
from ddl.adapter.operations import Operation, Signature
from ddl.adapter.process_sets import ProcessSet
from ddl.adapter.rank_prefix import naming_rank
from ddl.errors import NotSupported
from ddl.reduce_op import OpLike, parse_op
from ddl_torch import _operations
from ddl_torch._process_set import Where, global_process_set

__all__ = ["check_same_kind", "reduce_gradients", "sparse_allreduce_async", "sparse_sum"]

_HALVES = (torch.float16, torch.bfloat16)  #: they are added up, and divided, in float32 and rounded once


def sparse_sum(tensor: torch.Tensor, op: ddl.ReduceOp, size: int) -> Operation[torch.Tensor]:
    """Add up (``Sum``) or average (``Average``) the sparse tensors of ``size`` ranks.

    Their shape, type and number of sparse dimensions are the same on every rank. The result is a new, coalesced tensor,
    the same bits on every rank.
    """
    own = tensor.detach().coalesce()
    shape, dtype = own.shape, own.dtype
    parts = [_operations.allgather(own.indices().t()), _operations.allgather(own.values())]
    gathered = _operations.grouped(parts, "allgather")

    def finish(results: Any) -> torch.Tensor:
        places, entries = gathered.finish(results)
        entries = entries.float() if dtype in _HALVES else entries
        if op == ddl.Average and not (dtype.is_floating_point or dtype.is_complex):
            entries = entries.long()  # their sum may be more than the type holds
        total = torch.sparse_coo_tensor(places.t(), entries, shape, check_invariants=False).coalesce()
        total = total / size if op == ddl.Average else total
        return total.to(dtype) if dtype in _HALVES else total

    signature = Signature("sparse_allreduce", gathered.signature.tensors, f"op={op.name} shape={tuple(shape)}")
    return Operation(signature, gathered.start, finish)


def check_same_kind(communicator: ddl.Communicator, tensor: torch.Tensor, what: str) -> None:
    """Raise ``InvalidArgument``, on all ranks, if sparse tensors differ in what they must have in common.

    Entries of a rank with a larger shape would have no place in the result elsewhere. Collective, blocking.
    """
    kinds = communicator.allgather_object([list(tensor.shape), tensor.sparse_dim(), str(tensor.dtype)])
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            theirs, first = ("shape {}, {} sparse dimensions, {}".format(*each) for each in (kind, kinds[0]))
            raise ddl.InvalidArgument(f"{what}: rank {rank} has a sparse tensor of {theirs}; rank 0 has {first}")


@naming_rank
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: OpLike = ddl.Average,
    process_set: ProcessSet = global_process_set,
    *,
    communicator: Optional[ddl.Communicator] = None,
) -> Callable[[], torch.Tensor]:
    """Combine sparse tensors over all ranks; return a function that waits for the result and returns it.

    Submitted as the verbs are (verbs.py): by name, or with ``communicator`` in the order of the calls. tensor: of the
    layout ``torch.sparse_coo``; shape, type and number of sparse dimensions are the same on every rank, the
    number of entries need not be. op: ``ddl.Average`` or ``ddl.Sum``. The result is a new, coalesced tensor, the same
    bits on every rank. Raises ``InvalidArgument``, on all ranks if tensors differ in what must be the same (by name:
    ``CollectiveMismatch``).

    >>> handle = ddl_torch.sparse_allreduce_async(embedding.weight.grad, "embedding", ddl_torch.Average)
    >>> embedding.weight.grad = handle()
    """
    what = f"sparse_allreduce_async of {name!r}"
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ddl.InvalidArgument(f"{what}: it is no sparse (COO) tensor; use allreduce for a dense one")
    kind = parse_op(op, what)
    if kind not in (ddl.Average, ddl.Sum):
        raise NotSupported(f"{what}: op={kind!r}; sparse tensors can be averaged and summed")
    where = Where(process_set, communicator)
    operation = sparse_sum(tensor, kind, where.size)
    if communicator is not None:
        check_same_kind(communicator, tensor, what)
    return where.start(operation, name).wait


#: What a rank has for a parameter: nothing, something dense, or a sparse gradient of k sparse dimensions: _SPARSE + k.
_NOTHING, _SPARSE, _DENSE = 0, 1, 255


def _kind(gradient: Optional[torch.Tensor]) -> int:
    if gradient is None:
        return _NOTHING
    return _SPARSE + gradient.sparse_dim() if gradient.layout == torch.sparse_coo else _DENSE


def reduce_gradients(
    parameters: Sequence[torch.Tensor], said: Sequence[int], communicator: ddl.Communicator, op: ddl.ReduceOp
) -> Tuple[List[torch.Tensor], List[int]]:
    """Make the sparse ``p.grad`` of each of ``parameters`` the same on all ranks. Collective, blocking.

    A rank without a gradient counts as zero; where no rank has one, ``p.grad`` is left alone. Returns, alike on all
    ranks, the parameters of which some rank has a dense gradient, for which nothing is done, and for each number of
    ``said`` (0 to 255) the greatest of any rank.
    """
    kinds = np.array([*(_kind(p.grad) for p in parameters), *said], np.uint8)
    communicator.allreduce_(kinds, op=ddl.Max)
    where = Where(None, communicator)
    works = []
    for p, kind in zip(parameters, kinds.tolist()):
        if kind not in (_NOTHING, _DENSE):
            gradient = _with_sparse_dimensions(kind - _SPARSE, p)
            works.append((p, where.start(sparse_sum(gradient, op, where.size), None)))
    for p, work in works:
        p.grad = work.wait()
    return [p for p, kind in zip(parameters, kinds.tolist()) if kind == _DENSE], kinds[len(parameters) :].tolist()


def _with_sparse_dimensions(number: int, parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``parameter``, or zero, with so many sparse dimensions, as another rank has."""
    gradient = parameter.grad
    if gradient is None:
        nowhere = torch.empty((number, 0), dtype=torch.int64, device=parameter.device)
        nothing = parameter.new_empty((0, *parameter.shape[number:]), requires_grad=False)
        return torch.sparse_coo_tensor(nowhere, nothing, parameter.shape, check_invariants=False)
    return gradient if gradient.sparse_dim() == number else gradient.to_dense().to_sparse(number)
