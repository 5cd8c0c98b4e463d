"""Turns torch tensors into what ``ddl`` takes, and back; and ``Work``, the handle of an asynchronous verb on tensors.

Where elements are added up, the core gets the tensor itself, under its own type; it knows complex ones, too. Where they
are only moved, a type that numpy lacks travels as an integer type of the same size.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, ContextManager, Generic, Optional, TypeVar

import torch

import ddl
from ddl.adapter.operations import Waitable
from ddl_torch._compat import mark_written
from ddl_torch._memory import is_ordinary
from ddl_torch._streams import GpuTensor, is_on_gpu, refuse_capture

__all__ = ["KINDS", "Work", "alias", "carrier", "from_array", "memory_of", "plain", "to_array", "writing", "written"]

T = TypeVar("T")
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_NUMPY_HAS = {
    *(torch.float16, torch.float32, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128),
    *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
}
#: Types that the core adds up, with numpy's letters for their kinds.
KINDS = {
    dtype: "b" if dtype == torch.bool else "c" if dtype.is_complex else "f" if dtype.is_floating_point else "i"
    for dtype in (*_NUMPY_HAS, torch.bfloat16, torch.complex32)
}


class Work(Generic[T]):
    """An operation on tensors under way. Any thread may wait for it."""

    def __init__(self, work: Waitable, finish: Callable[[Any], T]) -> None:
        self._work = work
        self._finish: Optional[Callable[[Any], T]] = finish
        self._result: Optional[T] = None
        self._finishing = threading.Lock()  # a result is finished once, in place for some verbs
        self._join: Callable[[], None] = getattr(finish, "join", _nothing)

    def done(self) -> bool:
        """Return whether it has ended, well or not. Does not block."""
        return self._work.done()

    def wait(self, timeout: Optional[float] = None) -> T:
        """Wait until it has ended and return its result; ``timeout`` in seconds, None: the operation's own deadline.

        Raises ``WaitTimeout`` if that ran out (the operation goes on), or the error that the operation ended with, such
        as ``CollectiveMismatch`` and ``CollectiveTimeout``.
        """
        raw = self._work.wait(timeout)
        with self._finishing:
            if self._finish is not None:
                self._result, self._finish = self._finish(raw), None
            else:
                self._join()
        return self._result  # type: ignore[return-value]


def _nothing() -> None:
    """Stand in for what a GPU's stream has to wait for: there is none."""


def plain(tensor: Any, verb: str) -> torch.Tensor:
    """Return ``tensor`` without history, if it is a dense one; raise ``InvalidArgument`` if it is not.

    Every tensor of a verb passes through here before anything is submitted: what the core could not read would end the
    verb on this rank only, and with that all later ones.
    """
    if is_ordinary(tensor) and _has_memory(tensor):
        ordinary: torch.Tensor = tensor
        return ordinary
    if not isinstance(tensor, torch.Tensor):
        raise ddl.InvalidArgument(f"{verb}: a {type(tensor).__name__} is no torch tensor; use the verbs of ddl for it")
    if tensor.device.type == "meta":
        raise ddl.InvalidArgument(f"{verb}: the tensor is on meta, where it has a shape but no numbers")
    if not tensor.is_cpu:
        if not is_on_gpu(tensor):
            raise ddl.InvalidArgument(f"{verb}: the tensor is on {tensor.device}; copy it to the CPU first")
        refuse_capture(tensor, verb)
    if tensor.is_nested:
        raise ddl.InvalidArgument(f"{verb}: the tensor is nested; pass each of tensor.unbind()")
    if tensor.layout != torch.strided:
        raise ddl.InvalidArgument(f"{verb}: the tensor is sparse ({tensor.layout}); pass tensor.to_dense()")
    if tensor.is_quantized:
        raise ddl.InvalidArgument(f"{verb}: the tensor is quantised ({tensor.dtype}); pass tensor.dequantize()")
    with torch._C.DisableTorchFunctionSubclass():  # what a subclass makes of a tensor is not what is sent
        own = tensor.detach().resolve_conj().resolve_neg()
        if _has_memory(own):
            return own if type(own) is torch.Tensor else own.as_subclass(torch.Tensor)
    raise ddl.InvalidArgument(
        f"{verb}: the {type(tensor).__name__} has no memory of its own that could be sent, as under torch.vmap, "
        "torch.func and torch.compile, or as a tensor that wraps others; call the verb outside, or pass "
        "tensor.clone(), or the tensors within"
    )


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:  # so says torch of what stands for another tensor
        return False


def alias(tensor: torch.Tensor, verb: str) -> torch.Tensor:
    """Return the memory of ``tensor`` as a tensor that the core can add up, and write."""
    return memory_of(tensor, plain(tensor, verb), verb)


def memory_of(tensor: torch.Tensor, own: torch.Tensor, verb: str) -> torch.Tensor:
    """As ``alias``, if ``plain`` has already made ``own`` of ``tensor``."""
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        raise ddl.InvalidArgument(
            f"{verb}: the tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous, so it "
            "cannot be written in place; pass tensor.contiguous() or use the verb that returns a new tensor"
        )
    return own


def written(tensor: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """Return what finishes an in-place verb on ``tensor``."""

    def finish(_: Any) -> torch.Tensor:
        mark_written(tensor)
        return tensor

    return finish


def writing(*tensors: torch.Tensor) -> ContextManager[Any]:
    """Return the mode in which torch lets anybody write to ``tensors``, behind the caller's back.

    What was made in inference mode may be written to in that mode only, whichever thread does it, and when.
    """
    return torch.inference_mode() if any(tensor.is_inference() for tensor in tensors) else torch.no_grad()


def carrier(dtype: torch.dtype, verb: str) -> torch.dtype:
    """Return a type of the same size that numpy has."""
    if dtype in _NUMPY_HAS:
        return dtype
    if dtype.itemsize not in _INTEGERS:
        raise ddl.InvalidArgument(f"{verb}: tensors of type {dtype} cannot be communicated")
    return _INTEGERS[dtype.itemsize]


def to_array(tensor: torch.Tensor, verb: str) -> Any:
    """Return the contents of ``tensor`` for a verb of ``ddl`` that moves them; a numpy array for one on the CPU.

    Shares memory if ``tensor`` is contiguous.
    """
    own = plain(tensor, verb).contiguous()
    moved = own.view(carrier(own.dtype, verb))
    return moved.numpy() if moved.is_cpu else GpuTensor(moved)


def from_array(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Undo ``to_array``, of what a verb of ``ddl`` has returned: a numpy array, or a tensor on a GPU."""
    moved = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    return moved.view(dtype)
