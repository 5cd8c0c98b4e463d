"""``GradientBucket``: one flat buffer in shared memory that gradients of one type live in, and its state in a round.

A round is what happens from the first gradient of a backward pass until all averages are there: gradients arrive, the
bucket is sent, the result is waited for. Owned by a ``GradientReducer``; used by the thread that runs backward.

``p.grad`` shares the bucket's memory, so that averages need not be copied out. A script may keep such a tensor. The
bucket finds that out before it writes again, by the number of tensors that share its memory, and takes new memory then.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import torch

import ddl
from ddl.adapter.buckets import Bucket
from ddl.adapter.operations import timeline
from ddl_torch._announcement import ELEMENTS, Announcement, RoundSummary
from ddl_torch._gradient_entry import Entry, Replaced

__all__ = ["GradientBucket", "WIRE_DTYPES"]

# Type of a gradient -> type that the core adds up.
WIRE_DTYPES = {
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}


class GradientBucket:
    """The memory of one bucket, the views that serve as ``p.grad``, and what is left to do of its all-reduce."""

    def __init__(self, number: int, layout: Bucket, entries: List[Entry]) -> None:
        # ddl.adapter.buckets knows no framework: to it a type is any hashable object, here always a torch.dtype.
        self.dtype: torch.dtype = layout.dtype  # type: ignore[assignment]
        self.number = number
        self.entries = [entries[slot.item] for slot in layout.slots]
        self.flags_offset = layout.flags_offset
        #: Elements; behind the flags are ``ELEMENTS`` for the announcement, where ``layout`` has one.
        self.length = layout.flags_offset + len(layout.slots) + ELEMENTS
        self._parts = 2 if self.dtype.is_complex else 1  # numbers in an element
        self._offsets = [slot.offset for slot in layout.slots]
        self.unused: List[int] = []
        self._counts: Any = None  # the flags, where gradients are written in 8 bits
        self._dropped: Optional[np.ndarray] = None  # what those cannot say, for the next step
        self._lacked: Dict[int, np.ndarray] = {}  # ... of parameters that this rank does not use, before they are sent
        self._postdivide = 1.0
        self.finish: Optional[Callable[[], object]] = None  # ends the all-reduce; None: it was not sent
        self._take_memory()
        self.begin()

    def _take_memory(self) -> None:
        """Lie in new memory, all zeros: padding is sent, too."""
        self._array = ddl.empty(self.length * self.dtype.itemsize, "uint8")
        self._array.fill(0)
        self.flat = torch.from_numpy(self._array).view(self.dtype)
        self.flags = self.flat[self.flags_offset :]
        # What the core gets: the same memory, as a type that it adds up. numpy has no bfloat16, DLPack has.
        wire = (torch.view_as_real(self.flat) if self.dtype.is_complex else self.flat).reshape(-1)
        self._wire: Any = wire if wire.dtype == torch.bfloat16 else wire.numpy()
        for entry, offset in zip(self.entries, self._offsets):
            entry.place(self, self.flat, offset)
        self._prepared: Dict[str, Callable[[], object]] = {}  # by name
        self._storage = self.flat.untyped_storage()
        self._users = storage_users(self._storage)  # with the memory's own views, without any p.grad

    @property
    def bytes(self) -> int:
        """Bytes that are reduced."""
        return self.flat.numel() * self.flat.element_size()

    def begin(self) -> None:
        """Start a round: wait for the gradients of those parameters that require one now.

        Takes new memory if a tensor that shares the old one is kept somewhere: it stays as it is.
        """
        users = storage_users(self._storage) - self._users
        if users > 0 and users > sum(entry.shares_memory() for entry in self.entries):
            self._take_memory()
        self.sent = False
        self.finish = None
        self._postdivide = 1.0
        self.unused = []
        for entry in self.entries:
            entry.begin()
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

    def fill(self, size: int, announcement: Announcement) -> None:
        """Put zeros where this rank has no dense gradient; the bucket is ready to be sent to ``size`` ranks then.

        Who abandons the round sends whatever lies there: nobody uses it, and ``p.grad`` may be of the next round.
        """
        announcement.write(self.flags[len(self.entries) :], size)
        used = self.flags[: len(self.entries)]
        used.fill_(0 if announcement.abandoned else 1)
        if announcement.abandoned:
            self.unused = list(range(len(self.entries)))
            return
        for i, entry in enumerate(self.entries):
            dense = entry.adopt()
            if not dense:
                self.unused.append(i)
                assert entry.view is not None
                entry.view.zero_()
                used[i] = 0
            if entry.sparse_dimensions or (not dense and entry.parameter.grad is not None):
                used[i] = 2 * size  # it is sparse: see find_sparse

    def send(self, communicator: ddl.Communicator, op: ddl.ReduceOp, predivide: float, overlap: bool) -> None:
        """Start the all-reduce; without ``overlap``, ``receive`` does all of it."""
        name = f"bucket.{self.number}"
        coded = self.float32 if communicator.wire == "int8" else None
        flags_at = self._parts * self.flags_offset
        if coded is not None:
            if self._dropped is None:
                self._counts = np.empty(self._parts * len(self.flags), np.int32)
                self._dropped = np.zeros(flags_at, np.float32)  # the kernel gives memory for what is touched
            self._counts[:] = coded[flags_at:]
            self._lacked = {i: self._dropped_of(i).copy() for i in self.unused}
        if predivide != 1:
            self.flat.div_(predivide)
            op, self._postdivide = ddl.Sum, communicator.size / predivide
        if coded is None:
            self.sending(self._start(communicator, self._wire, op, name, overlap))
            return
        # A flag among eight bits of larger numbers would be lost.
        gradients = self._start(communicator, coded[:flags_at], op, name, overlap, self._dropped)
        flags = self._start(communicator, self._counts, ddl.Sum, f"{name}.flags", overlap)
        divisor = communicator.size if op == ddl.Average else predivide

        def finish() -> None:
            gradients()
            flags()
            coded[flags_at:] = self._counts / divisor
            for i, lacked in self._lacked.items():
                if not self.is_used(i):  # so what was sent is used nowhere
                    self._dropped_of(i)[:] = lacked

        self.sending(finish)

    def _dropped_of(self, i: int) -> np.ndarray:
        """Return the part of ``_dropped`` that belongs to entry ``i``."""
        assert self._dropped is not None
        end = self._offsets[i] + self.entries[i].parameter.numel()
        return self._dropped[self._parts * self._offsets[i] : self._parts * end]

    def is_used(self, i: int) -> bool:
        """After the all-reduce: return whether any rank has used the parameter of entry ``i``."""
        return bool(self.flags[i] != 0)

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

    def values(self) -> torch.Tensor:
        """Return the memory as a tensor that does not count as a user of it."""
        return torch.from_numpy(self._array).view(self.dtype)

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
        """After the all-reduce: mark and return the entries that lose their place, as some rank has a sparse gradient.

        A rank says so by a flag of twice the number of ranks: more than all of them together say of dense ones. Alike
        on all ranks.
        """
        limit = 1.5 * (1 if op == ddl.Average else size)
        flags = self.flags[: len(self.entries)].real.tolist()
        sparse = [entry for entry, flag in zip(self.entries, flags) if flag > limit]
        for entry in sparse:
            if entry.sparse_as_dense:
                entry.sparse_dimensions = entry.sparse_dimensions or 1  # those of embeddings have one
            else:
                entry.sparse = True
        return [entry for entry in sparse if entry.sparse]

    def heard(self, op: ddl.ReduceOp, size: int) -> RoundSummary:
        """After the all-reduce: return what the ranks have said of themselves."""
        return Announcement.read(self.flags[len(self.entries) :].real.tolist(), op, size)

    def forget(self) -> None:
        """Keep nothing of the last gradient that was sent for the next one, not even what rounding dropped.

        What was left over from earlier ones is lost with it: less than a step's rounding.
        """
        if self._dropped is not None:
            self._dropped.fill(0)

    def hand_out(self, communicator: ddl.Communicator, op: ddl.ReduceOp) -> List[Entry]:
        """After the all-reduce: let every ``p.grad`` be the average, but for sparse ones.

        Returns the entries whose ``p.grad`` was replaced by another tensor while the bucket was under way, after one of
        the bucket if PyTorch has written to its memory (clipping, say) meanwhile.
        """
        replaced: List[Entry] = []
        unused = set(self.unused)
        sharing = 0
        for i, entry in enumerate(self.entries):
            if entry.sparse or (unused and i in unused and not self.is_used(i)):
                continue
            try:
                sharing += entry.hand_out(communicator, op)
            except Replaced:
                replaced.append(entry)
        self._users = storage_users(self._storage) - sharing
        return self.entries[:1] + replaced if self._written else replaced


def storage_users(storage: torch.UntypedStorage) -> int:
    """Return how many tensors share a storage, with the storage's own objects in Python."""
    return torch._C._storage_Use_Count(storage._cdata)
