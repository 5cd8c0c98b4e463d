"""``adasum_`` of torch tensors; what it computes and how: ddl/adapter/adasum.py."""

from __future__ import annotations

from typing import Optional

import torch

import ddl
from ddl.adapter import adasum
from ddl_torch._compat import mark_written
from ddl_torch._tensors import alias

__all__ = ["adasum_"]


def adasum_(tensor: torch.Tensor, *, communicator: Optional[ddl.Communicator] = None) -> torch.Tensor:
    """Overwrite ``tensor`` with the Adasum of all ranks' tensors, the same bits on every rank; return it.

    Collective, blocking. ``tensor``: of float16, bfloat16, float32, float64 or a complex type, contiguous, with
    the same shape and type on every rank. Raises ``InvalidArgument`` before anything is sent.
    """
    own = alias(tensor, "adasum_")
    own = torch.view_as_real(own) if own.is_complex() else own  # as vectors of twice as many real numbers
    communicator = ddl.world() if communicator is None else communicator
    if own.dtype == torch.bfloat16 or not own.is_cpu:  # numpy has none of these
        wide = own.float() if own.dtype == torch.bfloat16 else own
        own.copy_(torch.from_numpy(adasum.adasum_(communicator, wide.cpu().numpy())))
    else:
        adasum.adasum_(communicator, own.numpy())
    mark_written(tensor)
    return tensor
