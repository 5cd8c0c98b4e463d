"""``GpuArray``: what verbs know of an array on a GPU: its shape and type, its memory, and how to make another like it.

The core asks an array's owner for memory itself (docs/gpu.md). A verb that returns a new array needs more: the array's
framework allocates the result, so that its allocator and its streams know of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np

from ddl import _core
from ddl.errors import InvalidArgument

__all__ = ["ElementType", "GpuArray", "GpuMemory", "is_on_gpu"]

GpuMemory = _core.GpuMemory

_ON_GPU = (2, 13)  #: DLPack's numbers for memory of CUDA: on a device, and managed


def is_on_gpu(x: Any) -> bool:
    """Return whether ``x`` is an array on a CUDA GPU: by DLPack, or by ``__cuda_array_interface__``."""
    if isinstance(x, np.ndarray) or getattr(x, "is_cpu", False):  # torch's answer is quick; DLPack's takes 2 us
        return False
    device = getattr(x, "__dlpack_device__", None)
    if device is None:
        return isinstance(x, GpuArray) or hasattr(x, "__cuda_array_interface__")
    return int(device()[0]) in _ON_GPU


@dataclass(frozen=True)
class ElementType:
    """What numpy says of a type, also of those that it does not have. ``itemsize``: bytes."""

    name: str
    itemsize: int

    @property
    def kind(self) -> str:
        """``c`` for complex numbers, as numpy."""
        return "c" if self.name.startswith("complex") else self.name[0]

    def __str__(self) -> str:
        return self.name


class GpuArray:
    """An array on a GPU. ``owner``: the framework's array, which the caller has passed or gets back."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        if hasattr(owner, "shape") and hasattr(owner, "dtype"):
            shape, dtype = owner.shape, owner.dtype
        else:
            fields = owner.__cuda_array_interface__
            shape, dtype = fields["shape"], np.dtype(fields["typestr"])
        self.shape: Tuple[int, ...] = tuple(int(n) for n in shape)
        self.dtype = ElementType(getattr(dtype, "name", str(dtype).split(".")[-1]), int(dtype.itemsize))

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize

    def new(self, shape: Sequence[int]) -> GpuArray:
        """Return a new array of this type on the same GPU, whose contents nobody has written.

        Raises ``InvalidArgument`` if its framework cannot make one that may be written.
        """
        owner = self.owner
        if hasattr(owner, "new_empty"):  # torch
            return GpuArray(owner.new_empty(tuple(shape)))
        if type(owner).__module__.partition(".")[0] == "cupy":
            with owner.device:
                return GpuArray(sys.modules["cupy"].empty(tuple(shape), owner.dtype))
        if hasattr(owner, "__array_namespace__") and not _is_immutable(owner):
            empty = owner.__array_namespace__().empty
            return GpuArray(empty(tuple(shape), dtype=owner.dtype, device=owner.device))
        raise InvalidArgument(
            f"a {type(owner).__name__} on a GPU: its framework cannot make an array for the result; use an in-place "
            "verb or out= with an array of another framework (CuPy, PyTorch), or copy the array to the CPU"
        )

    def memory(self) -> Any:
        """Return what the core gets for this call: of complex numbers two real ones for each."""
        if self.dtype.kind != "c":
            return self.owner
        if hasattr(self.owner, "new_empty"):
            return sys.modules["torch"].view_as_real(self.owner)
        if not self.owner.flags.c_contiguous:
            raise InvalidArgument(f"the array of shape {self.shape} is not contiguous; pass a contiguous copy of it")
        return self.owner.reshape(-1).view(self.owner.real.dtype)


def _is_immutable(owner: Any) -> bool:
    return type(owner).__module__.partition(".")[0] in ("jax", "jaxlib")
