"""``GradientBucket``: one flat buffer that gradients of one type on one device live in, and its state in a round.

A round is what happens from the first gradient of a backward pass until all averages are there: gradients arrive, the
bucket is sent, the result is waited for. Owned by a ``GradientReducer``; used by the thread that runs backward.

``p.grad`` shares the bucket's memory, so that averages need not be copied out. A script may keep such a tensor. The
bucket finds that out before it writes again, by the number of tensors that share its memory, and takes new memory then.
A script may also have PyTorch move the memory of such a tensor, and of all that share it; the bucket looks for that
where it begins, before it is sent and when it is received.

On a GPU, gradients may come on any stream; the sender of the bucket waits for all of these (``arrived``). There, flags
and announcement are in host memory, and an operation of their own: to write them to the GPU, or to read them there, the
host would have to wait in each bucket for all that the stream has queued.
"""

from __future__ import annotations

import itertools
from typing import Callable, Dict, Iterator, List, Optional

import numpy as np
import torch

import ddl
from ddl import clock
from ddl.adapter.buckets import Bucket
from ddl.adapter.operations import timeline
from ddl.memory import copy_past_caches
from ddl_torch._compat import storage_users
from ddl_torch._streams import GPU_TYPES, StreamJoin
from ddl_torch.gradients.announcement import ELEMENTS, Announcement, RoundSummary
from ddl_torch.gradients.entry import Entry, Replaced
from ddl_torch.gradients.flat_memory import FlatMemory

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
        # ddl.adapter.buckets knows no framework: to it a type is any hashable object, here always this pair.
        self.dtype: torch.dtype
        self._device: torch.device
        self.dtype, self._device = layout.dtype  # type: ignore[misc]
        self.number = number
        self.entries = [entries[slot.item] for slot in layout.slots]
        self.flags_offset = layout.flags_offset
        said = len(layout.slots) + ELEMENTS  # behind the flags comes the announcement
        on_gpu = self._device.type in GPU_TYPES
        self._flags_apart = _flags_on_host(said) if on_gpu else None  # ... and where gradients are written in 8 bits
        #: Elements of ``flat``.
        self.length = layout.flags_offset + (0 if on_gpu else said)
        self._parts = 2 if self.dtype.is_complex else 1  # numbers in an element
        self._offsets = [slot.offset for slot in layout.slots]
        self.unused: List[int] = []
        self._dropped: Optional[np.ndarray] = None  # what those cannot say, for the next step
        self._told: Optional[List[float]] = None  # the flags and the announcement, after the all-reduce
        self._lacked: Dict[int, np.ndarray] = {}  # ... of parameters that this rank does not use, before they are sent
        self._kept: Optional[torch.Tensor] = None  # what was sent, where it may have to be sent again
        self._postdivide = 1.0
        self.finish: Optional[Callable[[], object]] = None  # ends the all-reduce; None: it was not sent
        self._take_memory()
        self._arrivals = StreamJoin(self._device) if self.on_gpu else None
        self.begin()

    def _take_memory(self) -> None:
        """Lie in new memory, all zeros: padding is sent, too."""
        self._memory = FlatMemory(self.length, self.dtype, self._device)
        self._lie_in_memory()

    def _lie_in_memory(self) -> None:
        self.flat = self._memory.tensor
        if self.on_gpu:
            assert self._flags_apart is not None
            self.flags = self._flags_apart.tensor
        else:
            self.flags = self.flat[self.flags_offset :]
        for entry, offset in zip(self.entries, self._offsets):
            entry.place(self, self.flat, offset)
        self._storage = self.flat.untyped_storage()
        self._users = storage_users(self._storage)  # the memory's own views

    def _found_moved(self) -> bool:
        """If the storage has other memory, leave it to those who share it, and return True."""
        if not self._memory.moved:
            return False
        if self.on_gpu:
            self._take_memory()  # what it had was freed
        else:
            self._memory.come_back()
            self._lie_in_memory()
        return True

    def leave_if_kept(self) -> None:
        """Take new memory if a tensor that shares the old one is kept by others than this bucket's entries."""
        users = storage_users(self._storage) - self._users
        if users > 0 and users > sum(entry.users_of_memory() for entry in self.entries):
            self._take_memory()

    @property
    def on_gpu(self) -> bool:
        """Whether its memory is a GPU's."""
        return self._memory.on_gpu

    @property
    def bytes(self) -> int:
        """Bytes that are reduced."""
        return self.flat.numel() * self.flat.element_size()

    def begin(self) -> None:
        """Start a round: wait for the gradients of those parameters that require one now.

        Takes new memory if a tensor that shares the old one is kept somewhere: it stays as it is.
        """
        if not self._found_moved():
            self.leave_if_kept()
        self.sent = self.kept = False
        self.finish = None
        self._postdivide = 1.0
        self.unused = []
        for entry in self.entries:
            entry.begin()
        self.frozen = [entry for entry in self.entries if not entry.expected]
        self.pending = len(self.entries) - len(self.frozen)
        self.skipped = self.pending == 0  # all frozen: the same on every rank, so nobody sends it

    def keep(self) -> None:
        """Remember what is about to be sent: an all-reduce that is broken off leaves neither that nor an average.

        Only what entries have not kept themselves is copied: ``fill`` lets them.
        """
        self.kept = True
        if self._kept is None or self._kept.numel() != self.flat.numel():
            self._kept = torch.empty_like(self.flat)  # the kernel gives what is touched
        for part in self._not_kept_by_entries():
            target, source = self._kept[part], self.values()[part]
            if self._memory.on_gpu:
                target.copy_(source)
            else:
                copy_past_caches(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())

    def take_back(self) -> None:
        """Have the gradients of this rank alone again, in place of an average or of a part of one."""
        if self.kept:
            assert self._kept is not None
            for part in self._not_kept_by_entries():
                self.values()[part].copy_(self._kept[part])
            for entry in self.entries:
                if entry.came is not None:
                    assert entry.view is not None
                    entry.view.copy_(entry.came)
        self.sent, self.kept, self.finish = False, False, None

    def forget_inputs(self) -> None:
        """Remember no more what was sent: the round has ended."""
        self.kept = False
        for entry in self.entries:
            entry.came = None

    def _not_kept_by_entries(self) -> Iterator[slice]:
        """Yield the parts of ``flat`` whose entries have not kept what came, as few as possible."""
        for is_copied, group in itertools.groupby(
            zip(self.entries, self._offsets), lambda place: place[0].came is None
        ):
            if is_copied:
                places = list(group)
                last, offset = places[-1]
                yield slice(places[0][1], offset + last.parameter.numel())

    def forget_calls(self) -> None:
        """Go on with another communicator: what was sent by the one before is lost."""
        self.sent, self.finish = False, None
        for memory in (self._memory, self._flags_apart):
            if memory is not None:
                memory.forget_calls()

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

    def fill(self, size: int, announcement: Announcement, *, keeps: bool) -> None:
        """Put zeros where this rank has no dense gradient; the bucket is ready to be sent to ``size`` ranks then.

        ``keeps``: ``keep`` follows, and a gradient that is copied now can as well be kept.
        A rank that abandons the round sends whatever lies there: nobody uses it, and ``p.grad`` may be of the next
        round.
        """
        if self._arrivals is not None:
            self._arrivals.join()
        self._found_moved()
        self._told = None
        announcement.write(self.flags[len(self.entries) :], size)
        used = self.flags[: len(self.entries)]
        used.fill_(0 if announcement.abandoned else 1)
        if announcement.abandoned:
            self.unused = list(range(len(self.entries)))
            return
        for i, entry in enumerate(self.entries):
            dense = entry.adopt(keeps=keeps and not self.on_gpu)
            if not dense:
                self.unused.append(i)
                assert entry.view is not None
                entry.view.zero_()
                used[i] = 0
            if entry.sparse_dimensions or (not dense and entry.parameter.grad is not None):
                used[i] = 2 * size  # it is sparse: see find_sparse

    def send(self, communicator: ddl.Communicator, op: ddl.ReduceOp, predivide: float, overlap: bool) -> None:
        """Start the all-reduce; without ``overlap``, ``receive`` does all of it."""
        coded = communicator.wire == "int8" and self._memory.float32
        if coded:
            self._keep_what_int8_drops()
        op_of_flags = op
        if predivide != 1:
            self.flat.div_(predivide)
            op, self._postdivide = ddl.Sum, communicator.size / predivide
        gradients = self._memory.reduction(
            communicator,
            op,
            f"bucket.{self.number}",
            start=overlap,
            numbers=self._parts * self.flags_offset if coded else None,
            residual=self._dropped if coded else None,
        )
        if not coded and not self.on_gpu:
            self.sending(gradients)
            return
        # Coded: a flag among eight bits of larger numbers would be lost.
        flags = self.send_flags(communicator, op_of_flags, overlap)

        def finish() -> None:
            gradients()
            flags()
            for i, lacked in self._lacked.items() if coded else ():
                if not self.is_used(i):  # so what was sent is used nowhere
                    self._dropped_of(i)[:] = lacked

        self.sending(finish)

    def send_flags(self, communicator: ddl.Communicator, op: ddl.ReduceOp, overlap: bool) -> Callable[[], None]:
        """Start the all-reduce of flags and announcement by themselves; return what ends it, and reads them."""
        if self._flags_apart is None:
            self._flags_apart = _flags_on_host(len(self.flags))
        counts = self._flags_apart.tensor
        if not self.on_gpu:
            counts.copy_(self.flags.real)
        wait = self._flags_apart.reduction(communicator, ddl.Sum, f"bucket.{self.number}.flags", start=overlap)
        divisor = communicator.size if op == ddl.Average else 1

        def finish() -> None:
            wait()
            told = counts / divisor
            self._told = told.tolist()
            if not self.on_gpu:  # as if they had been reduced where they are, which ``receive`` divides
                self.values()[self.flags_offset :].copy_(told * self._postdivide)

        return finish

    def _keep_what_int8_drops(self) -> None:
        if self._dropped is None:
            self._dropped = np.zeros(self._parts * self.flags_offset, np.float32)  # the kernel gives what is touched
        self._lacked = {i: self._dropped_of(i).copy() for i in self.unused}

    def _dropped_of(self, i: int) -> np.ndarray:
        """Return the part of ``_dropped`` that belongs to entry ``i``."""
        assert self._dropped is not None
        end = self._offsets[i] + self.entries[i].parameter.numel()
        return self._dropped[self._parts * self._offsets[i] : self._parts * end]

    def told(self) -> List[float]:
        """After the all-reduce: return the flags and the announcement."""
        if self._told is None:
            self._told = self.flags.real.tolist()
        return self._told

    def is_used(self, i: int) -> bool:
        """After the all-reduce: return whether any rank has used the parameter of entry ``i``."""
        return self.told()[i] != 0

    def sending(self, finish: Callable[[], object]) -> None:
        """Note that the bucket is on its way, and that ``finish`` ends that."""
        self._version = self.flat._version
        self._sent_at = clock.now()
        self.sent = True
        self.finish = finish

    @property
    def float32(self) -> bool:
        """Whether it is of numbers that can be written shorter on the wire: see ``FlatMemory.float32``."""
        return self._memory.float32

    @property
    def numbers(self) -> int:
        """How many real numbers it has."""
        return self._parts * self.length

    def gradient_came(self) -> None:
        """A gradient was written to its place, on the stream that is current."""
        if self._arrivals is not None:
            self._arrivals.note()

    def values(self) -> torch.Tensor:
        """Return the memory as a tensor that does not count as a user of it."""
        return self._memory.values()

    def receive(self) -> None:
        """End the all-reduce."""
        assert self.finish is not None
        self.finish()
        self.finish = None
        recorder = timeline.active()
        if recorder is not None:
            recorder.operation(f"bucket.{self.number}", "allreduce", self._sent_at, self._sent_at, clock.now())
        self._written = self._found_moved() or self.flat._version != self._version
        if self._postdivide != 1:
            self.flat.div_(self._postdivide)

    def find_sparse(self, op: ddl.ReduceOp, size: int) -> List[Entry]:
        """After the all-reduce: mark and return the entries that lose their place, as some rank has a sparse gradient.

        A rank says so by a flag of twice the number of ranks: more than all of them together say of dense ones. Alike
        on all ranks.
        """
        limit = 1.5 * (1 if op == ddl.Average else size)
        sparse = [entry for entry, flag in zip(self.entries, self.told()) if flag > limit]
        for entry in sparse:
            if entry.sparse_as_dense:
                entry.sparse_dimensions = entry.sparse_dimensions or 1  # those of embeddings have one
            else:
                entry.sparse = True
        return [entry for entry in sparse if entry.sparse]

    def heard(self, op: ddl.ReduceOp, size: int) -> RoundSummary:
        """After the all-reduce: return what the ranks have said of themselves."""
        return Announcement.read(self.told()[len(self.entries) :], op, size)

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
        for i, entry in enumerate(self.entries):
            if entry.sparse or (unused and i in unused and not self.is_used(i)):
                continue
            try:
                entry.hand_out(communicator, op)
            except Replaced:
                replaced.append(entry)
        return self.entries[:1] + replaced if self._written else replaced


def _flags_on_host(length: int) -> FlatMemory:
    return FlatMemory(length, torch.int32, torch.device("cpu"))
