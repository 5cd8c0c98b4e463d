"""What the core sees of a tensor: where its numbers are, and of what type. It asks here first, and DLPack otherwise."""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Optional, Tuple

import torch

from ddl.adapter.arrays import describe_arrays_of, describe_host_arrays_of, element_number
from ddl_torch._streams import is_on_gpu, memory

__all__ = ["InHost", "in_host", "is_ordinary"]

_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
_NUMBERS: Dict[torch.dtype, int] = {
    getattr(torch, name): element_number(name) for name in (*_FLOATS, *_INTEGERS) if hasattr(torch, name)
}
_keys = torch._C._dispatch_keys  # 0.3 us, where to ask for each property of its own takes 2
_text_or_number: Callable[[Any], Any] = getattr(torch._C.DispatchKeySet, "raw_repr", repr)  # torch 2.1 has no number


def _ordinary_keys() -> FrozenSet[Any]:
    """Return the sets of keys of tensors that have no property beside being dense and on the CPU."""
    with torch.inference_mode():
        inference = torch.empty(0)
    return frozenset(_text_or_number(_keys(tensor)) for tensor in (torch.empty(0), inference))


_ORDINARY = _ordinary_keys()


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense, on the CPU and without history, and its memory has its numbers as they are.

    That is not so where it is conjugated, negated, quantised, sparse or nested, or stands for another tensor.
    """
    return _text_or_number(_keys(tensor)) in _ORDINARY and not tensor.requires_grad


class InHost(Tuple[Any, int, int, int]):
    """Where a tensor's numbers are: storage, address, how many, type. The core takes it for the tensor."""

    __slots__ = ()


def in_host(tensor: torch.Tensor) -> Optional[InHost]:
    """Return where the numbers of an ordinary, contiguous tensor are; None for another, or one without memory."""
    if not is_ordinary(tensor) or not tensor.is_contiguous():
        return None
    address, elements, number = tensor.data_ptr(), tensor.numel(), _NUMBERS.get(tensor.dtype)
    if number is None or (address == 0 and elements > 0):
        return None
    # The storage, because the tensor itself may be given other memory meanwhile.
    return InHost((tensor.untyped_storage(), address, elements, number))


describe_host_arrays_of(torch.Tensor, in_host)
describe_host_arrays_of(InHost, None)
describe_arrays_of(torch.Tensor, lambda tensor: memory(tensor) if is_on_gpu(tensor) else None)
