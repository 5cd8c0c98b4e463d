"""What every rank of a distributed optimizer must have alike, and what each of its parameters must be like."""

from __future__ import annotations

import hashlib
from typing import Any, List, Sequence, Tuple

import torch

import ddl
from ddl_torch._gradient_bucket import WIRE_DTYPES

__all__ = ["check_parameter", "check_same_on_all_ranks"]


def check_parameter(name: str, parameter: torch.Tensor) -> None:
    """Raise ``InvalidArgument`` for a parameter that this version cannot train."""
    if torch.nn.parameter.is_lazy(parameter):
        raise ddl.InvalidArgument(f"parameter {name!r} has no shape yet; run the lazy modules once before wrapping")
    if parameter.device.type != "cpu":
        raise ddl.InvalidArgument(f"parameter {name!r} is on {parameter.device}; this version of DDL trains on the CPU")
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
    lines = list(settings)
    for name, p in parameters:
        lines.append(f"parameter {name!r} {p.dtype} of shape {tuple(p.shape)}, strides {p.stride()}")
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    answers = communicator.allgather_object([digest, own])
    if all(theirs == digest for theirs, _ in answers):
        return [own for _, own in answers]
    everybody: List[List[str]] = communicator.allgather_object(lines)
    for rank, theirs in enumerate(everybody):
        for i in range(max(len(theirs), len(everybody[0]))):
            one, other = (side[i] if i < len(side) else "nothing" for side in (everybody[0], theirs))
            if one != other:
                raise ddl.InvalidArgument(
                    "DistributedOptimizer: ranks have different models or arguments: on rank 0 there is "
                    f"{one}; on rank {rank} {other}. Build the same model, with the same requires_grad, on every rank"
                )
    raise ddl.InternalError("DistributedOptimizer: the descriptions of two ranks differ by digest but not by line")
