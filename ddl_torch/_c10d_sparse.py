"""``all_reduce`` of sparse (COO) tensors for c10d, as DDP asks for it where an embedding has sparse gradients.

Every rank gets the entries of all ranks, and adds up those of one place.
"""

from __future__ import annotations

from typing import Any

import torch

import ddl
from ddl import Communicator, InvalidArgument
from ddl.operations import Several
from ddl_torch._c10d_arguments import Part, reduction
from ddl_torch._tensors import from_array, to_array

__all__ = ["allreduce"]

_HALVES = (torch.float16, torch.bfloat16)  # they are added up in float32


def allreduce(communicator: Communicator, tensor: torch.Tensor, op: Any) -> Part:
    """Sum or average ``tensor`` over all ranks, in place. Numbers of entries are exchanged first.

    ``tensor``: on the CPU; its shape, its type and its sparse dimensions are the same on all ranks, its number of
    entries need not be. Raises ``InvalidArgument``: on all ranks if tensors differ.
    """
    if tensor._is_view():  # to write it would change the view only; torch makes one of a complex tensor
        raise InvalidArgument(
            "all_reduce: the tensor is a view of a sparse one, or complex, and cannot be written; pass tensor.clone(), "
            "real and imaginary part each by itself"
        )
    own = tensor.detach().coalesce()
    places, entries = own.indices().t(), own.values()
    ddl_op, factor = reduction(op, entries)
    average = ddl_op == ddl.Average
    if ddl_op not in (ddl.Sum, ddl.Average) or (average and not (entries.is_floating_point() or entries.is_complex())):
        raise InvalidArgument(f"all_reduce: sparse tensors of type {tensor.dtype} have no {op}; use SUM")
    kinds = communicator.allgather_object([list(own.shape), own.sparse_dim(), str(own.dtype)])
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            texts = "shape {}, {} sparse dimensions, {}".format(*kind), "{}, {}, {}".format(*kinds[0])
            raise InvalidArgument(f"all_reduce: rank {rank} has a sparse tensor of {texts[0]}; rank 0 has {texts[1]}")
    sent = [places, entries if factor is None else entries * factor]
    work = Several([communicator.allgather_async(to_array(part, "all_reduce")) for part in sent])

    def finish() -> None:
        everywhere, added = (from_array(array, part.dtype) for array, part in zip(work.wait(), sent))
        if added.dtype in _HALVES:
            added = added.float()
        total = torch.sparse_coo_tensor(everywhere.t(), added, own.shape, check_invariants=False).coalesce()
        total = total / communicator.size if average else total
        tensor.copy_(total.to(tensor.dtype))

    return work, finish
