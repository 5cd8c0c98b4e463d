"""All-reduce of sparse tensors: every rank gets the entries of all ranks and adds up those of one place.

Only what a rank has travels, so this pays as long as few places are in use on all ranks together.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import torch

import ddl
from ddl_torch._process_set import communicator_of
from ddl_torch._tensors import from_array, to_array

__all__ = ["reduce_gradients", "sparse_allreduce_async"]


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str = "",
    op: ddl.ReduceOp = ddl.Average,
    process_set: Any = None,
    *,
    communicator: Optional[ddl.Communicator] = None,
) -> Callable[[], torch.Tensor]:
    """Combine sparse tensors over all ranks; return a function that waits for the result and returns it.

    Collective; sizes are exchanged before it returns, indices and values afterwards. tensor: of the layout
    ``torch.sparse_coo``, on the CPU; shape, type and number of sparse dimensions are the same on every rank, the number
    of entries need not be. name: appears in errors. op: ``ddl.Average`` or ``ddl.Sum``. The result is a new, coalesced
    tensor, the same bits on every rank. Raises ``InvalidArgument``.

    >>> handle = ddl_torch.sparse_allreduce_async(embedding.weight.grad, "embedding", ddl_torch.Average)
    >>> embedding.weight.grad = handle()
    """
    group = communicator_of(process_set, communicator)
    what = f"sparse_allreduce_async of {name!r}"
    if group is None:
        raise ddl.InvalidArgument(f"{what}: rank {ddl.rank()} is not in the process set; only its members call this")
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo or tensor.device.type != "cpu":
        raise ddl.InvalidArgument(f"{what}: it is no sparse (COO) tensor on the CPU; use allreduce for a dense one")
    if op not in (ddl.Average, ddl.Sum):
        raise ddl.InvalidArgument(f"{what}: op={op!r}; sparse tensors can be averaged and summed")
    own = tensor.detach().coalesce()
    size, shape, dtype = group.size, own.shape, own.dtype
    indices = group.allgather_async(to_array(own.indices().t(), what))
    values = group.allgather_async(to_array(own.values(), what))

    def finish() -> torch.Tensor:
        places = from_array(indices.wait(), torch.int64).t()
        entries = from_array(values.wait(), dtype)
        return torch.sparse_coo_tensor(places, entries / size if op == ddl.Average else entries, shape).coalesce()

    return finish


#: What a rank has for a parameter: nothing, something dense, or a sparse gradient of k sparse dimensions: _SPARSE + k.
_NOTHING, _SPARSE, _DENSE = 0, 1, 255


def _kind(gradient: Optional[torch.Tensor]) -> int:
    if gradient is None:
        return _NOTHING
    return _SPARSE + gradient.sparse_dim() if gradient.layout == torch.sparse_coo else _DENSE


def reduce_gradients(
    parameters: Sequence[torch.Tensor], communicator: ddl.Communicator, op: ddl.ReduceOp
) -> List[torch.Tensor]:
    """Make the sparse ``p.grad`` of each of ``parameters`` the same on all ranks. Collective, blocking.

    A rank without a gradient counts as zero; where no rank has one, ``p.grad`` is left alone. Returns, alike on all
    ranks, the parameters of which some rank has a dense gradient: nothing is done for those.
    """
    kinds = np.array([_kind(p.grad) for p in parameters], np.uint8)
    communicator.allreduce_(kinds, op=ddl.Max)
    handles = []
    for p, kind in zip(parameters, kinds.tolist()):
        if kind not in (_NOTHING, _DENSE):
            mine = _with_sparse_dimensions(kind - _SPARSE, p)
            handles.append((p, sparse_allreduce_async(mine, op=op, communicator=communicator)))
    for p, handle in handles:
        p.grad = handle()
    return [p for p, kind in zip(parameters, kinds.tolist()) if kind == _DENSE]


def _with_sparse_dimensions(number: int, parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``parameter``, or zero, with so many sparse dimensions, as another rank has."""
    gradient = parameter.grad
    if gradient is None:
        nowhere = torch.empty((number, 0), dtype=torch.int64)
        nothing = parameter.new_empty((0, *parameter.shape[number:]), requires_grad=False)
        return torch.sparse_coo_tensor(nowhere, nothing, parameter.shape)
    return gradient if gradient.sparse_dim() == number else gradient.to_dense().to_sparse(number)
