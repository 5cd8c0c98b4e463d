"""``GpuArray``: what verbs know of an array on a GPU: its shape and type, its memory, and how to make another like it.

The core asks an array's owner for memory itself (docs/gpu.md). A verb that returns a new array needs more: the array's
framework allocates the result, so that its allocator and its streams know of it.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ddl import _core
from ddl.errors import InvalidArgument

__all__ = ["ElementType", "GpuArray", "GpuMemory", "ImportingWork", "UnimportedArray", "imported", "is_on_gpu"]
__all__ += ["describe_arrays_of", "describe_host_arrays_of", "element_number", "is_unimported"]

GpuMemory = _core.GpuMemory
describe_arrays_of = _core.describe_arrays_of
describe_host_arrays_of = _core.describe_host_arrays_of
element_number = _core.element_number

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
        """numpy's letter, of complex numbers ``c``; that of bfloat16 is ``f`` here."""
        return "f" if self.name == "bfloat16" else self.name[0]

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
        if hasattr(owner, "__array_namespace__"):
            return UnimportedArray(owner, shape)
        raise InvalidArgument(
            f"a {type(owner).__name__} on a GPU: its framework cannot make an array for the result; use an in-place "
            "verb or out= with an array of another framework (CuPy, PyTorch), or copy the array to the CPU"
        )

    def memory(self) -> Any:
        """Return what the core looks at for this call."""
        return self.owner


describe_arrays_of(GpuArray, lambda array: array.memory())


#: DLPack's numbers of kinds of types; those of names that begin otherwise: see ``_code``.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5}


def _code(dtype: ElementType) -> int:
    return {"bfloat16": 4, "bool": 6}.get(dtype.name) or _CODES[dtype.kind]


class UnimportedArray(GpuArray):
    """A result for a framework with immutable arrays (JAX): in memory of DDL's own, until it is complete.

    Then the framework takes it by DLPack (``import_``), and gives it back when its last array of it is gone.
    """

    def __init__(self, like: Any, shape: Sequence[int]) -> None:
        super().__init__(like)
        self.shape = tuple(int(n) for n in shape)
        self._block = _core.GpuBlock(int(like.__dlpack_device__()[1]), self.nbytes)

    def memory(self) -> GpuMemory:
        """Return what the core gets for this call."""
        return GpuMemory(self._block.address, self.nbytes // self.itemsize, self.dtype.name, 0, self._block)

    def import_(self) -> Any:
        """Return it as an array of the framework. Its contents must be complete."""
        return self.owner.__array_namespace__().from_dlpack(self)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _ON_GPU[0], self._block.device

    def __dlpack__(self, *, stream: Any = None, **newer: Any) -> Any:
        return self._block.capsule(self.shape, _code(self.dtype), 8 * self.itemsize)


def imported(result: Any) -> Any:
    """Return the result of a call that has ended, with each ``UnimportedArray`` as an array of its framework."""
    if isinstance(result, UnimportedArray):
        return result.import_()
    return tuple(map(imported, result)) if isinstance(result, tuple) else result


def is_unimported(result: Any) -> bool:
    """Return whether ``imported`` would change the result of a call."""
    return isinstance(result, UnimportedArray) or isinstance(result, tuple) and any(map(is_unimported, result))


class ImportingWork:
    """A call under way with an ``UnimportedArray``; to a caller, a ``ddl.Work``."""

    def __init__(self, work: _core.Work) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._imported = False
        self._result: Any = None

    def done(self) -> bool:
        """Return whether it has ended, well or not. Does not block."""
        return self._work.done()

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Wait until it has ended and return its result; see ``ddl.Work``."""
        result = self._work.wait(timeout)
        with self._lock:
            if not self._imported:
                self._result, self._imported = imported(result), True
        return self._result

    def can_wait_on(self) -> bool:
        """Return False: only what is complete can be imported."""
        return False

    def wait_on(self, stream: int) -> bool:
        """Return False."""
        return False


def _is_immutable(owner: Any) -> bool:
    return type(owner).__module__.partition(".")[0] in ("jax", "jaxlib")
