"""``GradientBucket``: one flat buffer in shared memory that gradients of one type live in, and its state in a round.

A round is what happens between two calls of ``step``: gradients arrive, the bucket is sent, the result is waited for.
Owned by a ``GradientReducer``; used by the thread that runs backward and step.
"""

from __future__ import annotations

import math
from typing import Any, Callable, List, Optional

import numpy as np
import torch

import ddl
from ddl.buckets import Bucket

__all__ = ["Entry", "GradientBucket", "WIRE_DTYPES"]

# Type of a gradient -> type that the core adds up.
WIRE_DTYPES = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


class Entry:
    """One parameter: its place in a bucket (once it has one) and what happened to it in this round."""

    def __init__(self, parameter: torch.Tensor, name: str) -> None:
        self.parameter = parameter
        self.name = name
        self.bucket: Optional[GradientBucket] = None
        self.view: Optional[torch.Tensor] = None  # of the bucket; shaped and strided as the parameter
        self.passes = 0  # backward passes that brought a gradient
        self.expected = False  # the bucket waits for this one


class GradientBucket:
    """The memory of one bucket, the views that serve as ``p.grad``, and what is left to do of its all-reduce."""

    def __init__(self, number: int, layout: Bucket, entries: List[Entry]) -> None:
        # ddl.buckets knows no framework: to it a type is any hashable object, here always a torch.dtype.
        dtype: torch.dtype = layout.dtype  # type: ignore[assignment]
        self.number = number
        self.entries = [entries[slot.item] for slot in layout.slots]
        self._offsets = [slot.offset for slot in layout.slots]
        self.flat = torch.from_numpy(ddl.empty(layout.bytes, "uint8")).view(dtype)
        self.flat.zero_()  # padding is sent too
        self.flags_offset = layout.flags_offset
        self.flags = self.flat[layout.flags_offset :]
        # What the core gets: the same memory, as a type that it adds up. numpy has no bfloat16, DLPack has.
        wire = torch.view_as_real(self.flat) if dtype.is_complex else self.flat
        self._wire: Any = wire if wire.dtype == torch.bfloat16 else wire.numpy()
        for entry, slot in zip(self.entries, layout.slots):
            entry.bucket = self
            entry.view = _view_like(entry.parameter, self.flat, slot.offset)
        self.unused: List[int] = []
        self._prepared: Optional[Callable[[], object]] = None
        self._dropped: Optional[np.ndarray] = None  # what 8 bits cannot say, for the next step
        self.finish: Optional[Callable[[], object]] = None  # ends the all-reduce; None: it was not sent
        self.begin()

    @property
    def bytes(self) -> int:
        """Bytes that are reduced."""
        return self.flat.numel() * self.flat.element_size()

    def begin(self) -> None:
        """Start a round: wait for the gradients of those parameters that require one now."""
        self.sent = False
        self.finish = None
        self.unused = []
        for entry in self.entries:
            entry.passes = 0
            entry.expected = entry.parameter.requires_grad
        self.frozen = [entry for entry in self.entries if not entry.expected]
        self.pending = len(self.entries) - len(self.frozen)
        self.skipped = self.pending == 0  # all frozen: the same on every rank, so nobody sends it

    def thawed(self) -> bool:
        """Return whether a parameter requires a gradient that did not when the round began."""
        return any(entry.parameter.requires_grad for entry in self.frozen)

    def place(self, element: int) -> str:
        """Return, for an error, whose gradient element ``element`` of ``flat`` belongs to, and its index there."""
        for entry, offset in zip(self.entries, self._offsets):
            view = entry.view
            assert view is not None
            if offset <= element < offset + view.numel():
                index = tuple((element - offset) // stride % n for n, stride in zip(view.shape, view.stride()))
                return f"parameter {entry.name!r} at index {index}"
        return f"bucket.{self.number} (its padding or flags) at element {element}"

    def fill(self) -> None:
        """Put zeros where this rank has no gradient; the bucket is ready to be sent then."""
        self.flags.fill_(1)
        for i, entry in enumerate(self.entries):
            if not adopt(entry):
                self.unused.append(i)
                assert entry.view is not None
                entry.view.zero_()
                self.flags[i] = 0

    def send(self, communicator: ddl.Communicator, op: ddl.ReduceOp, overlap: bool) -> None:
        """Start the all-reduce; without ``overlap``, ``finish`` does all of it."""
        name = f"bucket.{self.number}"
        residual = self._residual(communicator.wire)
        if overlap:
            self.sending(communicator.allreduce_async_(self._wire, op=op, name=name, residual=residual).wait)
            return
        if self._prepared is None:
            self._prepared = communicator.prepare_allreduce(self._wire, op=op, name=name, residual=residual)
        self.sending(self._prepared)

    def sending(self, finish: Callable[[], object]) -> None:
        """Note that the bucket is on its way, and that ``finish`` ends that."""
        self._version = self.flat._version
        self.sent = True
        self.finish = finish

    @property
    def float32(self) -> Optional[np.ndarray]:
        """Its memory as the core gets it, if that is of float32, which alone can be written shorter on the wire."""
        return self._wire if isinstance(self._wire, np.ndarray) and self._wire.dtype == np.float32 else None

    def _residual(self, wire: str) -> Optional[np.ndarray]:
        if wire == "int8" and self._dropped is None and self.float32 is not None:
            self._dropped = np.zeros_like(self.float32)  # the kernel gives memory for what is touched
        return self._dropped

    def written_since_sent(self) -> bool:
        """Return whether PyTorch has written to the memory (clipping, say) after it was handed to the core."""
        return self.flat._version != self._version

    def hand_out(self) -> List[Entry]:
        """After the all-reduce: give ``p.grad`` to parameters that only other ranks used.

        Returns the entries whose ``p.grad`` was replaced by another tensor while the bucket was under way.
        """
        for i in self.unused:
            entry = self.entries[i]
            if entry.parameter.grad is None and self.flags[i] != 0:
                entry.parameter.grad = entry.view
        return [
            entry
            for entry in self.entries
            if entry.parameter.grad is not None and entry.parameter.grad is not entry.view
        ]


def adopt(entry: Entry) -> bool:
    """Make ``p.grad`` the view of the bucket, with its present contents; False if there is no gradient."""
    grad, view = entry.parameter.grad, entry.view
    if grad is view:
        return True
    if grad is None:
        return False
    assert view is not None
    if grad.layout != torch.strided:
        raise ddl.InvalidArgument(
            f"parameter {entry.name!r} has a sparse gradient, which cannot be all-reduced in a bucket; make it dense "
            "(sparse=False for an Embedding)"
        )
    if grad.dtype != view.dtype or grad.shape != view.shape:
        raise ddl.InvalidState(
            f"the gradient of parameter {entry.name!r} is {grad.dtype} of shape {tuple(grad.shape)}, but it was "
            f"{view.dtype} of shape {tuple(view.shape)} when the optimizer was wrapped; convert the model before that"
        )
    view.copy_(grad.detach())
    entry.parameter.grad = view
    return True


def _view_like(parameter: torch.Tensor, flat: torch.Tensor, offset: int) -> torch.Tensor:
    """Return the part of ``flat`` from ``offset`` on with the parameter's shape and, where it is dense, its strides.

    Autograd adds into a gradient fastest when its strides are those of the parameter (channels_last, say).
    """
    shape = parameter.shape
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    dense_format = formats.get(parameter.dim())
    if dense_format is not None and parameter.is_contiguous(memory_format=dense_format):
        return flat.as_strided(shape, parameter.stride(), offset)
    return flat[offset : offset + math.prod(shape)].view(shape)
