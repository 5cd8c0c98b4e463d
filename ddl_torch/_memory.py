"""What the core sees of a tensor: where its numbers are, and of what type. It asks here first, and DLPack otherwise."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch

from ddl.adapter.arrays import describe_arrays_of, describe_host_arrays_of, element_number
from ddl_torch._streams import is_on_gpu, memory

__all__ = ["InHost", "in_host", "is_ordinary"]

_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_NUMBERS: Dict[torch.dtype, int] = {
    getattr(torch, name): element_number(name) for name in (*_FLOATS, *_INTEGERS) if hasattr(torch, name)
}
_STRIDED = torch.strided


def is_ordinary(tensor: Any) -> bool:
    """Return whether a tensor is dense, on the CPU and without history, and its memory has its numbers as they are.

    One of a subclass may be anything, and is none; nor is one that is conjugated, negated, quantised, sparse or nested.
    Whether it has memory, and does not stand for another tensor, only ``data_ptr`` tells. (To ask for all that at once,
    by torch's dispatch keys, takes longer: it goes through pybind.)
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is _STRIDED
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_nested
        and not tensor.is_quantized
    )


class InHost(Tuple[Any, int, int, int]):
    """Where a tensor's numbers are: storage, address, how many, type. The core takes it for the tensor."""

    __slots__ = ()


def in_host(tensor: Any) -> Optional[InHost]:
    """Return where the numbers of an ordinary, contiguous tensor are; None for another, or one without memory."""
    try:
        if not is_ordinary(tensor) or not tensor.is_contiguous():
            return None
        number = _NUMBERS.get(tensor.dtype)
        address, elements = tensor.data_ptr(), tensor.numel()
    except RuntimeError:  # so says torch of what stands for another tensor
        return None
    if number is None or (address == 0 and elements > 0):
        return None
    # The storage, because the tensor itself may be given other memory meanwhile.
    return InHost((tensor.untyped_storage(), address, elements, number))


describe_host_arrays_of(torch.Tensor, in_host)
describe_host_arrays_of(InHost, None)
describe_arrays_of(torch.Tensor, lambda tensor: memory(tensor) if is_on_gpu(tensor) else None)
