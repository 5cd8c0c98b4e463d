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
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
import torch

import ddl
from ddl.buckets import Gradient, assign
from ddl.compression import fastest
from ddl_torch import _overlap
from ddl_torch._closure import average_before_step
from ddl_torch._gradient_bucket import Entry, GradientBucket, Presence, adopt
from ddl_torch._gradient_check import GradientCheck
from ddl_torch._optimizer_arguments import Settings
from ddl_torch._same_model import check_parameter, check_same_on_all_ranks
from ddl_torch._update import PartialUpdates
from ddl_torch.powersgd import LowRankBucket
from ddl_torch.sparse import reduce_gradients

__all__ = ["GradientReducer"]


def _remove_hooks(hooks: List[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


class GradientReducer:
    """The buckets of one optimizer. ``synchronized``: gradients are averaged and none has come since.

    ``presence``: what this rank says of itself in the rounds to come. ``own``: communicators to be closed with the
    optimizer, to which those are added that are made here.
    """

    def __init__(
        self,
        communicator: ddl.Communicator,
        settings: Settings,
        backward_passes_per_step: int,
        own: List[ddl.Communicator],
    ) -> None:
        self.communicator = communicator
        self.op = settings.op
        self.backward_passes_per_step = backward_passes_per_step
        self.synchronized = False
        self.presence = Presence.TRAINING
        self._settings = settings
        self._own = own
        self._check: Optional[GradientCheck] = None
        self._low_rank: Dict[int, LowRankBucket] = {}  # by the number of the bucket
        self._overlap = False  # decided in ``lay_out``, alike on all ranks
        self._entries: List[Entry] = []
        self._buckets: List[GradientBucket] = []
        self._next = 0  # number of the bucket to send next
        self._open = False  # a gradient has come in this round
        self._complete = False  # ... in the backward pass that sends
        self._skip = False
        self._updates = PartialUpdates()
        self._seen = Presence.TRAINING  # in the last round, of all ranks
        self._hooks: List[torch.utils.hooks.RemovableHandle] = []
        weakref.finalize(self, _remove_hooks, self._hooks).atexit = False
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
            twin = self.communicator.split(0, deterministic=True)  # not before all have said that they want it
            assert twin is not None
            self._go_over_to(twin)
        if self._settings.check and self._check is None:
            self._check = GradientCheck(self.communicator, self._settings)
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
        self._go_over_to(fastest(self.communicator, [array for array in arrays if array is not None]))

    def _go_over_to(self, communicator: ddl.Communicator) -> None:
        if communicator is not self.communicator:
            self.communicator = communicator
            self._own.append(communicator)

    def release(self) -> None:
        """Leave the parameters to another reducer."""
        _remove_hooks(self._hooks)
        self._open = self.synchronized = False

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
        bucket.fill(self.communicator.size, self.presence)
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
        if self._skip:
            return None
        self._updates = PartialUpdates()
        try:
            return average_before_step(self, args, kwargs)
        except BaseException:
            self._updates.show()
            raise

    def after_step(self, kwargs: Dict[str, Any]) -> None:
        """Note that gradients have been used."""
        self._updates.show()
        self.synchronized = False

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        """``before_step`` inside this context averages nothing."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def synchronize(self, updated: Optional[torch.optim.Optimizer] = None) -> None:
        """Send what was not sent, wait for everything, and make every ``p.grad`` the average.

        ``updated``: takes its step for the parameters of each bucket but the last as soon as their averages are there;
        their gradients are hidden until ``after_step``.
        """
        error = self._end_round(updated)
        self.synchronized = True
        if error is not None:
            raise error

    def _end_round(self, updated: Optional[torch.optim.Optimizer] = None) -> Optional[ddl.Error]:
        """Do what every rank does with the round, whatever it wants with the averages; return what they suffer from."""
        self._begin()
        self._send_all()
        self.lay_out()  # parameters that were added or unfrozen; not before all ranks have sent the same
        self._send_all()
        sent = [bucket for bucket in self._buckets if bucket.sent]
        found: List[Entry] = []
        changed: List[Entry] = []
        for bucket in sent:
            start = time.perf_counter()
            bucket.receive()
            self._seconds_waiting += time.perf_counter() - start
            found += bucket.find_sparse(self.op, self.communicator.size)
            changed += bucket.hand_out()
            if updated is not None and bucket is not sent[-1] and not changed:
                self._updates.update(updated, [entry for entry in bucket.entries if not entry.sparse])
        start = time.perf_counter()
        mixed = self._reduce_sparse(sent)
        self._seconds_waiting += time.perf_counter() - start
        # Every rank takes part, also one that finds below that its gradients were changed, and says that first.
        wrong = None if self._check is None else self._check.end()
        self._steps += 1
        self._open = False
        for bucket in sent:
            bucket.sent = False
        self._leave_out(found)
        where = f"[rank {self.communicator.rank}/{self.communicator.size}]"
        if changed:
            return ddl.InvalidState(
                f"{where} gradients were changed (near parameter {changed[0].name!r}) between backward() "
                "and step(), while they were being averaged, so they are undefined now. Call optimizer.synchronize() "
                "before clipping or changing gradients"
            )
        if wrong is None and mixed:
            return ddl.InvalidState(
                f"{where} parameter {self.names[mixed[0]]!r} has a dense gradient where another rank, or a step "
                "before, had a sparse one; make all of them dense with DistributedOptimizer(sparse_as_dense=True)"
            )
        return wrong

    def _reduce_sparse(self, sent: Sequence[GradientBucket]) -> List[torch.Tensor]:
        """Reduce sparse gradients; return the parameters whose gradient was dense somewhere.

        In a round without a bucket, ranks say here whether they are present.
        """
        sparse = [entry.parameter for entry in self._entries if entry.sparse]
        if sent:
            self._seen = sent[0].presence(self.op, self.communicator.size)
            if not sparse:
                return []
        mixed, seen = reduce_gradients(sparse, self.presence, self.communicator, self.op)
        if not sent:
            self._seen = Presence(seen)
        return mixed

    def average_loss(self, loss: float) -> float:
        """Return the average (or sum) of the ranks' losses, after a round in which one was ``EVALUATING``."""
        value = np.array([loss])
        self.communicator.allreduce_(value, op=self.op)
        return float(value[0])

    def supply_nothing(self) -> bool:
        """Take part in a step of the other ranks without gradients, for ``join``; return whether there was one.

        There was none if all ranks have called this. Every ``p.grad`` is None afterwards.
        """
        self.discard()
        self.presence = Presence.JOINED
        parameters = [entry.parameter for entry in self._entries]
        for parameter in parameters:
            parameter.grad = None
        try:
            self.synchronize()
            if self._seen is Presence.EVALUATING:
                self.average_loss(0.0)
            return self._seen is not Presence.JOINED
        finally:
            self.presence, self.synchronized = Presence.TRAINING, False
            for parameter in parameters:
                parameter.grad = None

    def discard(self) -> None:
        """Forget the gradients of this round. What other ranks do, which may use theirs, has to be done here too."""
        dropped = self.synchronized and self.presence is not Presence.EVALUATING  # LBFGS has used what it asked for
        if self._open and self._complete:
            self._end_round()  # what is wrong with gradients that nobody here uses is no error here
            if self._seen is Presence.EVALUATING:
                self.average_loss(0.0)
            dropped = True
        if dropped:
            for bucket in self._buckets:
                bucket.forget()
            for low_rank in self._low_rank.values():
                low_rank.forget()
        self._open = False
        self.synchronized = False

    @property
    def overlap_update(self) -> bool:
        """See ``DistributedOptimizer``."""
        return self._settings.overlap_update

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
