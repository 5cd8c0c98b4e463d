"""``GradientBucket``: one flat buffer in shared memory that gradients of one type live in, and its state in a round.

A round is what happens between two calls of ``step``: gradients arrive, the bucket is sent, the result is waited for.
Owned by a ``GradientReducer``; used by the thread that runs backward and step.
"""

from __future__ import annotations

import enum
import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import torch

import ddl
from ddl import timeline
from ddl.buckets import Bucket

__all__ = ["Entry", "GradientBucket", "Presence", "WIRE_DTYPES"]

# Type of a gradient -> type that the core adds up.
WIRE_DTYPES = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


class Presence(enum.IntEnum):
    """What a rank says of itself in every round. Of a round it is the greatest that any rank says."""

    JOINED = 0  # it takes part only because others go on
    TRAINING = 1
    EVALUATING = 2  # training, in a closure of ``step``: the average of the loss follows the round


class Entry:
    """One parameter: its place in a bucket (once it has one) and what happened to it in this round."""

    def __init__(self, parameter: torch.Tensor, name: str, group: Optional[int], sparse_as_dense: bool) -> None:
        self.parameter = parameter
        self.name = name
        self.group = group  # entries of one group share a bucket
        self.sparse_as_dense = sparse_as_dense
        self.sparse = False  # some rank has had a sparse gradient: it has no place in a bucket any more
        self.hooked = False
        self.bucket: Optional[GradientBucket] = None
        self.view: Optional[torch.Tensor] = None  # of the bucket: see _view_like
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
        self._prepared: Dict[str, Callable[[], object]] = {}  # by name
        self._counts: Any = None  # the flags, where gradients are written in 8 bits
        self._dropped: Optional[np.ndarray] = None  # what those cannot say, for the next step
        self._postdivide = 1.0
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
        self._postdivide = 1.0
        self.unused = []
        for entry in self.entries:
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
                index = tuple((element - offset) // max(stride, 1) % n for n, stride in zip(view.shape, view.stride()))
                return f"parameter {entry.name!r} at index {index}"
        return f"bucket.{self.number} (its padding or flags) at element {element}"

    def fill(self, size: int, presence: Presence) -> None:
        """Put zeros where this rank has no dense gradient; the bucket is ready to be sent to ``size`` ranks then."""
        self.flags.fill_(min(presence, 1))
        if presence is Presence.EVALUATING:
            self.flags[-1] = 2 * size
        for i, entry in enumerate(self.entries):
            if not adopt(entry):
                self.unused.append(i)
                assert entry.view is not None
                entry.view.zero_()
                self.flags[i] = 0 if entry.parameter.grad is None else 2 * size

    def send(self, communicator: ddl.Communicator, op: ddl.ReduceOp, predivide: float, overlap: bool) -> None:
        """Start the all-reduce; without ``overlap``, ``receive`` does all of it."""
        coded = self.float32 if communicator.wire == "int8" else None
        if coded is not None and self._counts is None:
            self._counts = np.empty(len(self.flags), np.int32)
            self._dropped = np.zeros(self.flags_offset, np.float32)  # the kernel gives memory for what is touched
        if coded is not None:
            self._counts[:] = coded[self.flags_offset :]
        if predivide != 1:
            self.flat.div_(predivide)
            op, self._postdivide = ddl.Sum, communicator.size / predivide
        name = f"bucket.{self.number}"
        if coded is None:
            self.sending(self._start(communicator, self._wire, op, name, overlap))
            return
        # A flag among eight bits of larger numbers would be lost.
        gradients = self._start(communicator, coded[: self.flags_offset], op, name, overlap, self._dropped)
        flags = self._start(communicator, self._counts, ddl.Sum, f"{name}.flags", overlap)
        divisor = communicator.size if op == ddl.Average else predivide

        def finish() -> None:
            gradients()
            flags()
            coded[self.flags_offset :] = self._counts / divisor

        self.sending(finish)

    def _start(
        self,
        communicator: ddl.Communicator,
        array: Any,
        op: ddl.ReduceOp,
        name: str,
        overlap: bool,
        residual: Optional[np.ndarray] = None,
    ) -> Callable[[], object]:
        if overlap:
            return communicator.allreduce_async_(array, op=op, name=name, residual=residual).wait
        if name not in self._prepared:
            self._prepared[name] = communicator.prepare_allreduce(array, op=op, name=name, residual=residual)
        return self._prepared[name]

    def sending(self, finish: Callable[[], object]) -> None:
        """Note that the bucket is on its way, and that ``finish`` ends that."""
        self._version = self.flat._version
        self._sent_at = time.monotonic()
        self.sent = True
        self.finish = finish

    @property
    def float32(self) -> Optional[np.ndarray]:
        """Its memory as the core gets it, if that is of float32, which alone can be written shorter on the wire."""
        return self._wire if isinstance(self._wire, np.ndarray) and self._wire.dtype == np.float32 else None

    def receive(self) -> None:
        """End the all-reduce."""
        assert self.finish is not None
        self.finish()
        self.finish = None
        recorder = timeline.active()
        if recorder is not None:
            recorder.operation(f"bucket.{self.number}", "allreduce", self._sent_at, self._sent_at, time.monotonic())
        self._written = self.flat._version != self._version
        if self._postdivide != 1:
            self.flat.div_(self._postdivide)

    def find_sparse(self, op: ddl.ReduceOp, size: int) -> List[Entry]:
        """After the all-reduce: mark and return the entries of which some rank has a sparse gradient, alike everywhere.

        A rank says so by a flag of twice the number of ranks: more than all of them together say of dense ones.
        """
        found = [entry for entry, flag in zip(self.entries, self.flags.real.tolist()) if flag > _limit(op, size)]
        for entry in found:
            entry.sparse = True
        return found

    def presence(self, op: ddl.ReduceOp, size: int) -> Presence:
        """After the all-reduce: return the greatest of all ranks."""
        flag = self.flags[-1].real.item()
        if flag > _limit(op, size):
            return Presence.EVALUATING
        return Presence.TRAINING if flag else Presence.JOINED

    def forget(self) -> None:
        """Let nothing of the gradient that was sent last reach the next one, not what rounding has left over either.

        What was left over from earlier ones is lost with it: less than a step's rounding.
        """
        if self._dropped is not None:
            self._dropped.fill(0)

    def hand_out(self) -> List[Entry]:
        """After the all-reduce: give ``p.grad`` to parameters that only other ranks used, but for sparse ones.

        Returns the entries whose ``p.grad`` was replaced by another tensor while the bucket was under way, after one of
        the bucket if PyTorch has written to its memory (clipping, say) meanwhile.
        """
        for i in self.unused:
            entry = self.entries[i]
            if not entry.sparse and entry.parameter.grad is None and self.flags[i] != 0:
                entry.parameter.grad = entry.view
        replaced = [
            entry
            for entry in self.entries
            if not entry.sparse and entry.parameter.grad is not None and entry.parameter.grad is not entry.view
        ]
        return self.entries[:1] + replaced if self._written else replaced


def _limit(op: ddl.ReduceOp, size: int) -> float:
    """Return what a flag exceeds if some rank has set it to ``2 * size`` instead of 0 or 1."""
    return 1.5 * (1 if op == ddl.Average else size)


def adopt(entry: Entry) -> bool:
    """Make ``p.grad`` the view of the bucket, with its present contents; False if there is no dense gradient."""
    grad, view = entry.parameter.grad, entry.view
    if grad is view:
        return True
    if grad is None:
        return False
    assert view is not None
    if grad.layout not in (torch.strided, torch.sparse_coo):
        raise ddl.InvalidArgument(
            f"parameter {entry.name!r} has a gradient of layout {grad.layout}; dense and COO ones can be averaged"
        )
    if grad.layout == torch.sparse_coo:
        if not entry.sparse_as_dense:
            return False
        grad = grad.to_dense()
    if grad.dtype != view.dtype or grad.shape != view.shape:
        raise ddl.InvalidState(
            f"the gradient of parameter {entry.name!r} is {grad.dtype} of shape {tuple(grad.shape)}, but it was "
            f"{view.dtype} of shape {tuple(view.shape)} when the optimizer was wrapped; convert the model before that"
        )
    view.copy_(grad.detach())
    entry.parameter.grad = view
    return True


def _view_like(parameter: torch.Tensor, flat: torch.Tensor, offset: int) -> torch.Tensor:
    """Return the part of ``flat`` from ``offset`` on with the parameter's shape and, where that is dense, its strides.

    Autograd adds into a gradient fastest when its strides are those of the parameter (channels_last, transposed).
    """
    strides = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, strides, offset)
