"""``GradientReducer``: averages gradients over the ranks, while the backward pass goes on or right after it.

Hooks copy each gradient into its bucket as soon as autograd has it. Buckets are sent strictly in their order, which is
the same on every rank, so that nothing has to be negotiated: a bucket that is full early waits for those before it,
and what is not full when the backward pass ends (parameters that this rank did not use) is sent by ``synchronize``.

Whether a bucket that is sent is averaged at once, by DDL's own thread, or by ``synchronize`` itself: _overlap.py.

Called by one thread: the one that runs backward and step. Hooks know the reducer by a weak reference, so that they keep
nothing alive; they go when it goes.
"""

from __future__ import annotations

import hashlib
import time
import weakref
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl.buckets import Gradient, assign
from ddl.compression import fastest
from ddl_torch import _overlap
from ddl_torch._gradient_bucket import WIRE_DTYPES, Entry, GradientBucket, adopt
from ddl_torch._gradient_check import GradientCheck
from ddl_torch.compression import PowerSGD
from ddl_torch.powersgd import LowRankBucket

__all__ = ["GradientReducer"]


def _remove_hooks(hooks: List[torch.utils.hooks.RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


class GradientReducer:
    """The buckets of one optimizer. ``synchronized``: gradients are averaged and none has come since."""

    def __init__(
        self,
        communicator: ddl.Communicator,
        op: ddl.ReduceOp,
        bucket_bytes: int,
        backward_passes_per_step: int,
        overlap: Optional[bool],
        check: int,
        powersgd: Optional[PowerSGD] = None,
    ) -> None:
        self.communicator = communicator
        self.op = op
        self.synchronized = False
        self._bucket_bytes = bucket_bytes
        self._passes_per_step = backward_passes_per_step
        self._wanted_overlap = overlap
        self._check_every = check
        self._check = GradientCheck(communicator, op, check) if check else None
        self._powersgd = powersgd
        self._low_rank: Dict[int, LowRankBucket] = {}  # by the number of the bucket
        self._overlap = False  # decided in ``lay_out``, alike on all ranks
        self._entries: List[Entry] = []
        self._buckets: List[GradientBucket] = []
        self._next = 0  # number of the bucket to send next
        self._open = False  # a gradient has come in this round
        self._complete = False  # ... in the backward pass that sends
        self._hooks: List[torch.utils.hooks.RemovableHandle] = []
        weakref.finalize(self, _remove_hooks, self._hooks).atexit = False
        self._steps, self._bytes, self._seconds_waiting = 0, 0, 0.0

    # --- layout ---

    def add(self, parameters: Sequence[Tuple[str, torch.Tensor]]) -> None:
        """Take parameters on. They get buckets in ``lay_out``, or in the first ``synchronize`` that sees them."""
        for name, parameter in parameters:
            _check(name, parameter)
        self._entries += [Entry(parameter, name) for name, parameter in parameters]

    def lay_out(self) -> None:
        """Give a place to every parameter that requires a gradient and has none. Collective if there is one."""
        fresh = [entry for entry in self._entries if entry.bucket is None and entry.parameter.requires_grad]
        if not fresh:
            return
        self._check_same_on_all_ranks(fresh)
        gradients = [Gradient(e.parameter.numel(), e.parameter.dtype, e.parameter.element_size()) for e in fresh]
        for layout in assign(gradients, bucket_bytes=self._bucket_bytes):
            self._buckets.append(GradientBucket(len(self._buckets), layout, fresh))
        reducer = weakref.ref(self)
        for number, entry in enumerate(self._entries):
            if entry in fresh:
                # torch has no annotations there.
                hook = entry.parameter.register_post_accumulate_grad_hook(_hook(reducer, number))  # type: ignore[no-untyped-call]
                self._hooks.append(hook)

    def choose_wire(self) -> None:
        """Measure how the buckets are averaged fastest, and do so from now on. Collective; before the first step."""
        arrays = [bucket.float32 for bucket in self._buckets]
        self.communicator = fastest(self.communicator, [array for array in arrays if array is not None])

    def _check_same_on_all_ranks(self, fresh: Sequence[Entry]) -> None:
        """Raise ``InvalidArgument``, on all ranks, unless all have the same parameters in the same order.

        All then decide alike whether to overlap.
        """
        lines = [f"op={self.op.name}, bucket_bytes={self._bucket_bytes}, passes={self._passes_per_step}"]
        lines[0] += f", overlap={self._wanted_overlap}, check={self._check_every}"
        for e in fresh:
            p = e.parameter
            lines.append(f"parameter {e.name!r} {p.dtype} of shape {tuple(p.shape)}, strides {p.stride()}")
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        answers = self.communicator.allgather_object([digest, _overlap.place()])
        if all(theirs == digest for theirs, _ in answers):
            wanted = self._wanted_overlap
            self._overlap = _overlap.pays([place for _, place in answers]) if wanted is None else wanted
            return
        everybody: List[List[str]] = self.communicator.allgather_object(lines)
        for rank, theirs in enumerate(everybody):
            for i in range(max(len(theirs), len(everybody[0]))):
                one, other = (side[i] if i < len(side) else "nothing" for side in (everybody[0], theirs))
                if one != other:
                    raise ddl.InvalidArgument(
                        f"DistributedOptimizer: ranks have different models: number {i} on rank 0 is {one}; on rank "
                        f"{rank} it is {other}. Build the same model, with the same requires_grad, on every rank"
                    )

    # --- a round ---

    def _begin(self) -> None:
        if not self._open:
            self._open = True
            self._complete = False
            self._next = 0
            for bucket in self._buckets:
                bucket.begin()
            if self._check is not None:
                self._check.begin()

    def gradient_arrived(self, number: int) -> None:
        """Called by autograd when ``p.grad`` of a parameter has its value of this backward pass."""
        self._begin()
        self.synchronized = False
        entry = self._entries[number]
        bucket = entry.bucket
        assert bucket is not None
        if bucket.sent:
            raise ddl.InvalidState(
                f"[rank {self.communicator.rank}/{self.communicator.size}] parameter {entry.name!r} got a gradient in "
                f"another backward pass after its bucket.{bucket.number} was sent. To accumulate over several "
                "backward passes, say how many with backward_passes_per_step; to drop gradients, call "
                "optimizer.zero_grad() (not model.zero_grad()); else call optimizer.step() in between"
            )
        adopt(entry)
        entry.passes += 1
        if entry.passes == self._passes_per_step:
            self._complete = True
            if entry.expected:
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
        bucket.fill()
        if self._check is not None:
            self._check.keep(bucket)
        if self._powersgd is not None and bucket.flat.dtype == torch.float32:
            if bucket.number not in self._low_rank:
                new = LowRankBucket(bucket, self.communicator, self.op, self._powersgd.rank)
                self._low_rank[bucket.number] = new
            self._low_rank[bucket.number].send(self._overlap)
        else:
            bucket.send(self.communicator, self.op, self._overlap)
        self._bytes += bucket.bytes

    def synchronize(self) -> None:
        """Send what was not sent, wait for everything, and make every ``p.grad`` the average."""
        self._begin()
        self._send_all()
        self.lay_out()  # parameters that were added or unfrozen; not before all ranks have sent the same
        self._send_all()
        sent = [bucket for bucket in self._buckets if bucket.sent]
        start = time.perf_counter()
        for bucket in sent:
            assert bucket.finish is not None
            bucket.finish()
        self._seconds_waiting += time.perf_counter() - start
        # Every rank takes part, also one that finds below that its gradients were changed, and says that first.
        wrong = None if self._check is None else self._check.end()
        self._steps += 1
        self._open = False
        self.synchronized = True
        written = [bucket.entries[0].name for bucket in sent if bucket.written_since_sent()]
        replaced = [entry.name for bucket in sent for entry in bucket.hand_out()]
        for bucket in sent:
            bucket.sent, bucket.finish = False, None
        if written or replaced:
            raise ddl.InvalidState(
                f"[rank {self.communicator.rank}/{self.communicator.size}] gradients were changed (near parameter "
                f"{(written + replaced)[0]!r}) between backward() and step(), while they were being averaged, so they "
                "are undefined now. Call optimizer.synchronize() before clipping or changing gradients"
            )
        if wrong is not None:
            raise wrong

    def discard(self) -> None:
        """Forget the gradients of this round. What other ranks may have sent has to be sent here too."""
        if self._open and self._complete:
            self._send_all()
            for bucket in self._buckets:
                if bucket.finish is not None:
                    bucket.finish()
                bucket.sent, bucket.finish = False, None
        self._open = False
        self.synchronized = False

    @property
    def compression(self) -> str:
        """See ``DistributedOptimizer.compression``."""
        return self.communicator.wire if self._powersgd is None else "powersgd"

    def statistics(self) -> Dict[str, Union[int, float]]:
        """Return counts since the beginning; see ``DistributedOptimizer.statistics``."""
        return {"steps": self._steps, "seconds_waiting": self._seconds_waiting, "bytes": self._bytes}


def _hook(reducer: weakref.ref[GradientReducer], number: int) -> Callable[[torch.Tensor], None]:
    def gradient_arrived(_: torch.Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.gradient_arrived(number)

    return gradient_arrived


def _check(name: str, parameter: torch.Tensor) -> None:
    """Raise ``InvalidArgument`` for a parameter whose gradient cannot be reduced."""
    if torch.nn.parameter.is_lazy(parameter):
        raise ddl.InvalidArgument(f"parameter {name!r} has no shape yet; run the lazy modules once before wrapping")
    if parameter.device.type != "cpu":
        raise ddl.InvalidArgument(f"parameter {name!r} is on {parameter.device}; this version of DDL trains on the CPU")
    if parameter.requires_grad and parameter.dtype not in WIRE_DTYPES:
        raise ddl.InvalidArgument(
            f"parameter {name!r} has type {parameter.dtype}; gradients of float16, bfloat16, float32, float64 and of "
            "complex types can be averaged"
        )
