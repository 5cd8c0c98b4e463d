"""Checks that all ranks have the same model, with the same error on all; and that parameters can be trained."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

import torch

import ddl
from ddl.adapter.consistency import check_consistent
from ddl.adapter.rank_prefix import naming_rank
from ddl_torch._streams import is_on_gpu
from ddl_torch.gradients.bucket import WIRE_DTYPES

__all__ = ["check_parameter", "check_same_on_all_ranks"]


@naming_rank
def check_parameter(name: str, parameter: torch.Tensor) -> None:
    """Raise ``InvalidArgument`` for a parameter that this version cannot train."""
    if torch.nn.parameter.is_lazy(parameter):
        raise ddl.InvalidArgument(f"parameter {name!r} has no shape yet; run the lazy modules once before wrapping")
    if not (parameter.is_cpu or is_on_gpu(parameter)):
        raise ddl.InvalidArgument(
            f"parameter {name!r} is on {parameter.device}; DDL trains on the CPU and on CUDA GPUs"
        )
    if parameter.requires_grad and parameter.dtype not in WIRE_DTYPES:
        raise ddl.InvalidArgument(
            f"parameter {name!r} has type {parameter.dtype}; gradients of float16, bfloat16, float32, float64 and of "
            "complex types can be averaged"
        )


def check_same_on_all_ranks(
    communicator: ddl.Communicator,
    settings: Sequence[str],
    parameters: Sequence[Tuple[str, torch.Tensor]],
    own: Any = None,
) -> List[Any]:
    """Raise ``InvalidArgument``, on all ranks, unless all have the same settings and parameters in the same order.

    Collective, blocking. Returns every rank's ``own``, plain data, which travels along.
    """
    gpus = list(dict.fromkeys(p.device for _, p in parameters if is_on_gpu(p)))  # those of ranks have other numbers
    lines = [
        f"parameter {name!r} {p.dtype} of shape {tuple(p.shape)}, strides {p.stride()}"
        + (f", on GPU {gpus.index(p.device) + 1} of {len(gpus)}" if is_on_gpu(p) else "")
        for name, p in parameters
    ]
    return check_consistent(
        communicator,
        "DistributedOptimizer: ranks have different models or arguments",
        [*settings, *lines],
        "Build the same model, with the same requires_grad, on every rank",
        own=own,
    )
