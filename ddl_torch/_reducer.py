"""``GradientReducer``: averages gradients over the ranks, while the backward pass goes on or right after it.

Hooks copy each gradient into its bucket as soon as autograd has it. Buckets are sent strictly in their order, which is
the same on every rank, so that nothing has to be negotiated: a bucket that is full early waits for those before it,
and what is not full when the backward pass ends (parameters that this rank did not use) is sent by ``synchronize``.

Which gradients are sparse turns out when they come. In their first round, flags of the bucket tell all ranks; from then
on they have no place in buckets, and are exchanged by ``synchronize`` (sparse.py).

Whether a bucket that is sent is averaged at once, by DDL's own thread, or by ``synchronize`` itself: _overlap.py.

Called by one thread: the one that runs backward and step. Hooks know the reducer by a weak reference, so that they keep
nothing alive; they go when it goes.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl.buckets import Gradient, assign
from ddl.compression import fastest
from ddl_torch import _overlap
from ddl_torch._closure import average_before_step
from ddl_torch._gradient_bucket import Entry, GradientBucket, adopt
from ddl_torch._gradient_check import GradientCheck
from ddl_torch._same_model import check_parameter, check_same_on_all_ranks
from ddl_torch.compression import PowerSGD
from ddl_torch.powersgd import LowRankBucket
from ddl_torch.sparse import reduce_gradients

__all__ = ["GradientReducer", "Settings"]


@dataclass(frozen=True)
class Settings:
    """What ``DistributedOptimizer`` was told, and every rank must be told alike; its documentation is there."""

    op: ddl.ReduceOp
    bucket_bytes: int
    overlap: Optional[bool]
    check: int
    gradient_predivide_factor: float
    sparse_as_dense: bool
    deterministic: bool
    powersgd: Optional[PowerSGD]

    def lines(self) -> List[str]:
        """Return them one by one, for people."""
        return [f"{name}={getattr(value, 'name', value)}" for name, value in vars(self).items()]


def _remove_hooks(hooks: List[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


class GradientReducer:
    """The buckets of one optimizer. ``synchronized``: gradients are averaged and none has come since."""

    def __init__(self, communicator: ddl.Communicator, settings: Settings, backward_passes_per_step: int) -> None:
        self.communicator = communicator
        self.op = settings.op
        self.backward_passes_per_step = backward_passes_per_step
        self.synchronized = False
        self._settings = settings
        self._check = GradientCheck(communicator, settings.op, settings.check) if settings.check else None
        self._low_rank: Dict[int, LowRankBucket] = {}  # by the number of the bucket
        self._overlap = False  # decided in ``lay_out``, alike on all ranks
        self._entries: List[Entry] = []
        self._buckets: List[GradientBucket] = []
        self._next = 0  # number of the bucket to send next
        self._open = False  # a gradient has come in this round
        self._complete = False  # ... in the backward pass that sends
        self._skip = False
        self._present = True  # not only because other ranks go on
        self._hooks: List[torch.utils.hooks.RemovableHandle] = []
        weakref.finalize(self, _remove_hooks, self._hooks).atexit = False
        self._anyone_present = True  # in the last step
        self._steps, self._bytes, self._seconds_waiting = 0, 0, 0.0

    @property
    def names(self) -> Dict[torch.Tensor, str]:
        """The name of each parameter."""
        return {entry.parameter: entry.name for entry in self._entries}

    # --- layout ---

    def add(
        self,
        parameters: Sequence[Tuple[str, torch.Tensor]],
        groups: Optional[Mapping[torch.Tensor, int]] = None,
        sparse: bool = False,
    ) -> None:
        """Take parameters on; they get places in the next ``lay_out`` or ``synchronize``.

        ``groups``: parameter -> number of its group. ``sparse``: it is known that all their gradients will be.
        """
        for name, parameter in parameters:
            check_parameter(name, parameter)
        for name, parameter in parameters:
            entry = Entry(parameter, name, (groups or {}).get(parameter), self._settings.sparse_as_dense)
            entry.sparse = sparse
            self._entries.append(entry)

    def lay_out(self) -> None:
        """Give a place to every parameter that requires a gradient and has none. Collective if there is one."""
        moving = [entry for entry in self._entries if entry.parameter.requires_grad]
        placed = [entry for entry in moving if entry.bucket is None and not entry.sparse]
        fresh = [entry for entry in moving if not entry.hooked]
        if not placed and not fresh:
            return
        settings = [*self._settings.lines(), f"backward_passes_per_step={self.backward_passes_per_step}"]
        if any(entry.group is not None for entry in placed):
            settings.append(f"groups={[entry.group for entry in placed]}")
        named = [(entry.name, entry.parameter) for entry in (*placed, *(e for e in fresh if e.sparse))]
        places = check_same_on_all_ranks(self.communicator, settings, named, _overlap.place())
        wanted = self._settings.overlap
        self._overlap = _overlap.pays(places) if wanted is None else wanted
        if self._settings.deterministic and not self.communicator.deterministic:
            self._make_deterministic()
        gradients = [
            Gradient(e.parameter.numel(), e.parameter.dtype, e.parameter.element_size(), e.group) for e in placed
        ]
        for layout in assign(gradients, bucket_bytes=self._settings.bucket_bytes):
            self._buckets.append(GradientBucket(len(self._buckets), layout, placed))
        for entry in fresh:
            # torch has no annotations there.
            hook = entry.parameter.register_post_accumulate_grad_hook(_hook(weakref.ref(self), entry))  # type: ignore[no-untyped-call]
            self._hooks.append(hook)
            entry.hooked = True

    def _leave_out(self, sparse: Sequence[Entry]) -> None:
        """Lay the buckets out anew, without parameters whose gradients have turned out to be sparse. Collective."""
        if sparse:
            self._buckets = []
            self._low_rank.clear()
            for entry in self._entries:
                entry.bucket, entry.view = None, None
            self.lay_out()

    def choose_wire(self) -> None:
        """Measure how the buckets are averaged fastest, and do so from now on. Collective; before the first step."""
        arrays = [bucket.float32 for bucket in self._buckets]
        self.communicator = fastest(self.communicator, [array for array in arrays if array is not None])

    def _make_deterministic(self) -> None:
        """Go over to a communicator of the same ranks that is; not before all have said that they want it."""
        twin = self.communicator.split(0, deterministic=True)
        assert twin is not None
        self.communicator = twin
        if self._check is not None:
            self._check = GradientCheck(twin, self.op, self._settings.check)

    # --- a round ---

    def _begin(self) -> None:
        if not self._open:
            self._open = True
            self._complete = False
            self._next = 0
            for entry in self._entries:
                entry.passes = 0
            for bucket in self._buckets:
                bucket.begin()
            if self._check is not None:
                self._check.begin()

    def gradient_arrived(self, entry: Entry) -> None:
        """Called by autograd when ``p.grad`` of a parameter has its value of this backward pass."""
        self._begin()
        self.synchronized = False
        entry.passes += 1
        last = entry.passes == self.backward_passes_per_step
        self._complete = self._complete or last
        bucket = entry.bucket
        if bucket is None:  # sparse, or unfrozen since buckets were laid out: synchronize sees to it
            return
        if bucket.sent:
            raise ddl.InvalidState(
                f"[rank {self.communicator.rank}/{self.communicator.size}] parameter {entry.name!r} got a gradient in "
                f"another backward pass after its bucket.{bucket.number} was sent. To accumulate over several "
                "backward passes, say how many with backward_passes_per_step; to drop gradients, call "
                "optimizer.zero_grad() (not model.zero_grad()); else call optimizer.step() in between"
            )
        adopt(entry)
        if last and entry.expected:
            bucket.pending -= 1
            self._send_full()

    def _send_full(self) -> None:
        """Send buckets in their order, up to the first that is not full."""
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if not bucket.skipped:
                if bucket.pending or bucket.thawed():
                    return
                self._start(bucket)
            self._next += 1

    def _send_all(self) -> None:
        """Send the rest: first what every rank sends in this order, then what was thawed during the round."""
        for bucket in self._buckets[self._next :]:
            if not bucket.skipped:
                self._start(bucket)
        for bucket in self._buckets:
            if bucket.skipped and bucket.thawed():
                bucket.skipped = False
                self._start(bucket)
        self._next = len(self._buckets)

    def _start(self, bucket: GradientBucket) -> None:
        bucket.fill(self.communicator.size, self._present)
        if self._check is not None:
            self._check.keep(bucket)
        powersgd = self._settings.powersgd
        if powersgd is not None and bucket.flat.dtype == torch.float32:
            if bucket.number not in self._low_rank:
                self._low_rank[bucket.number] = LowRankBucket(bucket, self.communicator, self.op, powersgd.rank)
            self._low_rank[bucket.number].send(self._overlap)
        else:
            bucket.send(self.communicator, self.op, self._settings.gradient_predivide_factor, self._overlap)
        self._bytes += bucket.bytes

    def before_step(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
        """Average what ``step`` is about to use; returns the arguments that it is to have instead, None: the same."""
        return None if self._skip else average_before_step(self, args, kwargs)

    def after_step(self, kwargs: Dict[str, Any]) -> None:
        """Note that gradients have been used."""
        self.synchronized = False

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        """``before_step`` inside this context averages nothing."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def synchronize(self) -> None:
        """Send what was not sent, wait for everything, and make every ``p.grad`` the average."""
        self._begin()
        self._send_all()
        self.lay_out()  # parameters that were added or unfrozen; not before all ranks have sent the same
        self._send_all()
        sent = [bucket for bucket in self._buckets if bucket.sent]
        start = time.perf_counter()
        for bucket in sent:
            bucket.receive()
        self._anyone_present = any(bucket.anyone_present() for bucket in sent[:1])
        found = [entry for bucket in sent for entry in bucket.sparse_entries(self.op, self.communicator.size)]
        mixed = self._reduce_sparse(found)
        self._seconds_waiting += time.perf_counter() - start
        # Every rank takes part, also one that finds below that its gradients were changed, and says that first.
        wrong = None if self._check is None else self._check.end()
        self._steps += 1
        self._open = False
        self.synchronized = True
        written = [bucket.entries[0].name for bucket in sent if bucket.written]
        replaced = [entry.name for bucket in sent for entry in bucket.hand_out()]
        for bucket in sent:
            bucket.sent = False
        self._leave_out(found)
        where = f"[rank {self.communicator.rank}/{self.communicator.size}]"
        if written or replaced:
            raise ddl.InvalidState(
                f"{where} gradients were changed (near parameter {(written + replaced)[0]!r}) between backward() "
                "and step(), while they were being averaged, so they are undefined now. Call optimizer.synchronize() "
                "before clipping or changing gradients"
            )
        if wrong is not None:
            raise wrong
        if mixed:
            raise ddl.InvalidState(
                f"{where} parameter {self.names[mixed[0]]!r} has a dense gradient where another rank, or a step "
                "before, had a sparse one; make all of them dense with DistributedOptimizer(sparse_as_dense=True)"
            )

    def supply_nothing(self) -> bool:
        """Take part in a step of the other ranks without gradients, for ``join``; return whether there was one.

        There was none if all ranks have called this. Every ``p.grad`` is None afterwards.
        """
        self.discard()
        self._present = False
        parameters = [entry.parameter for entry in self._entries]
        for parameter in parameters:
            parameter.grad = None
        try:
            self.synchronize()
            return self._anyone_present or any(e.sparse and e.parameter.grad is not None for e in self._entries)
        finally:
            self._present, self.synchronized = True, False
            for parameter in parameters:
                parameter.grad = None

    def _reduce_sparse(self, found: Sequence[Entry]) -> List[torch.Tensor]:
        """Reduce sparse gradients, also of ``found``, which had none so far; return what was dense somewhere."""
        for entry in found:
            entry.sparse = True
        sparse = [entry.parameter for entry in self._entries if entry.sparse]
        return reduce_gradients(sparse, self.communicator, self.op) if sparse else []

    def discard(self) -> None:
        """Forget the gradients of this round. What other ranks may have sent has to be sent here too."""
        if self._open and self._complete:
            self._send_all()
            for bucket in self._buckets:
                if bucket.finish is not None:
                    bucket.receive()
                bucket.sent = False
        self._open = False
        self.synchronized = False

    @property
    def compression(self) -> str:
        """See ``DistributedOptimizer.compression``."""
        return self.communicator.wire if self._settings.powersgd is None else "powersgd"

    def statistics(self) -> Dict[str, Union[int, float]]:
        """Return counts since the beginning; see ``DistributedOptimizer.statistics``."""
        return {"steps": self._steps, "seconds_waiting": self._seconds_waiting, "bytes": self._bytes}


def _hook(reducer: weakref.ref[GradientReducer], entry: Entry) -> Callable[[torch.Tensor], None]:
    def gradient_arrived(_: torch.Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.gradient_arrived(entry)

    return gradient_arrived
