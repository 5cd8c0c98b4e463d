"""``Rounds``: averages all buckets of an optimizer once, and finds out whether all ranks do so for the same step.

That is a *round*. Buckets are sent strictly in their order, which is the same on every rank, so that nothing has to be
negotiated: a bucket that is full early waits for those before it. At the end of the round the remaining buckets are
sent, with zeros for parameters that this rank did not use. Then the rank waits for all of them.

Ranks that make different rounds, or have different weights, would train different models. With each bucket they tell
one another how many steps they have taken, and all raise an error if that differs (announcement.py).

Which gradients are sparse turns out when they come. In their first round, flags of the bucket tell all ranks; from then
on they have no place in buckets, and are exchanged at the end of the round (sparse.py).

The reducer decides when a round begins and ends (reducer.py). Its thread calls this.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch

import ddl
from ddl import clock
from ddl_torch.gradients.announcement import Announcement, Presence, RoundSummary, merge, who_is_apart
from ddl_torch.gradients.bucket import GradientBucket
from ddl_torch.gradients.check import GradientCheck
from ddl_torch.gradients.entry import Entry
from ddl_torch.gradients.layout import BucketLayout
from ddl_torch.gradients.options import OptimizerOptions
from ddl_torch.gradients.own_compressor import send_compressed
from ddl_torch.gradients.powersgd import LowRankBucket
from ddl_torch.gradients.same_weights import StartingWeights
from ddl_torch.gradients.update import PartialUpdates
from ddl_torch.sparse import reduce_gradients

__all__ = ["Rounds"]


class Rounds:
    """The rounds of one optimizer, over the parameters and buckets of ``layout``."""

    def __init__(self, layout: BucketLayout, options: OptimizerOptions, backward_passes_per_step: int) -> None:
        self.layout = layout
        self.backward_passes_per_step = backward_passes_per_step  #: alike on all ranks, which is checked
        self.presence = Presence.TRAINING  #: what this rank says of itself in the rounds to come
        self.steps_taken = 0  #: with averages; alike on ranks that have the same weights
        self.open = False  #: a gradient has come in this round
        self.seen = Presence.TRAINING  #: in the last round, the greatest of all ranks
        self.loss_due = False  #: a closure has ended a round, and its loss has not been averaged
        self.keeps_inputs = False  #: what is sent is kept, so that it can be sent again
        self.ended, self.bytes, self.seconds_waiting = 0, 0, 0.0
        self._options = options
        self._op = options.op
        self._check: Optional[GradientCheck] = None
        self._weights = StartingWeights(strict=bool(options.check))
        self._low_rank: Dict[int, LowRankBucket] = {}  # by the number of the bucket
        self._next = 0  # number of the bucket to send next

    @property
    def where(self) -> str:
        """How errors begin."""
        return self._communicator.who

    @property
    def _communicator(self) -> ddl.Communicator:
        return self.layout.communicator

    def lay_out(self) -> None:
        """Give a place to every parameter that requires a gradient and has none. Collective if there is one."""
        self.layout.lay_out(self.backward_passes_per_step)
        if self._options.check and self._check is None:
            self._check = GradientCheck(self._communicator, self._options)

    def take_back(self) -> None:
        """Have this rank's own gradients again, those of a round that was broken off, to be sent once more."""
        for bucket in self.layout.buckets:
            bucket.take_back()

    def resume(self) -> None:
        """Go on with the round that was broken off, from its first bucket."""
        self.open, self._next = True, 0
        for bucket in self.layout.buckets:
            bucket.begin()
        if self._check is not None:
            self._check.begin()

    def go_over_to(self, communicator: ddl.Communicator, *, afresh: bool) -> None:
        """Go on with other ranks, and count steps anew. Collective, blocking."""
        self.open = self.loss_due = False
        self.steps_taken = 0
        self._low_rank.clear()
        self.layout.go_over_to(communicator, self.backward_passes_per_step, afresh=afresh)
        self.forget()
        if self._check is not None:
            self._check = GradientCheck(self._communicator, self._options)
        self._weights = StartingWeights(strict=bool(self._options.check), known=not afresh)

    def begin(self) -> bool:
        """Begin a round, if none is open; return whether it has begun now."""
        if self.open:
            return False
        if self.loss_due:
            self.average_loss(0.0, another=True)
        self.open = True
        self._next = 0
        self._weights.keep(self.layout.entries)
        for bucket in self.layout.buckets:
            bucket.begin()
        if self._check is not None:
            self._check.begin()
        return True

    def is_complete(self) -> bool:
        """Return whether every bucket has all gradients that it waits for."""
        return all(bucket.skipped or not bucket.pending for bucket in self.layout.buckets)

    def send_full(self) -> None:
        """Send buckets in their order, up to the first that is not full."""
        buckets = self.layout.buckets
        while self._next < len(buckets):
            bucket = buckets[self._next]
            if not bucket.skipped:
                if bucket.pending or bucket.thawed():
                    return
                self._start(bucket)
            self._next += 1

    def send_all(self, abandoned: bool = False) -> None:
        """Send the rest: first what every rank sends in this order, then what was thawed during the round."""
        for bucket in self.layout.buckets[self._next :]:
            if not bucket.skipped:
                self._start(bucket, abandoned)
        for bucket in self.layout.buckets:
            if bucket.skipped and bucket.thawed():
                bucket.skipped = False
                self._start(bucket, abandoned)
        self._next = len(self.layout.buckets)

    def _says(self, abandoned: bool) -> Announcement:
        return Announcement(self.presence, self.steps_taken, abandoned)

    def _start(self, bucket: GradientBucket, abandoned: bool = False) -> None:
        communicator, op, overlap = self._communicator, self._op, self.layout.overlap
        bucket.fill(communicator.size, self._says(abandoned), keeps=self.keeps_inputs)
        if self.keeps_inputs:
            bucket.keep()
        if self._check is not None:
            self._check.keep(bucket)
        powersgd, own = self._options.powersgd, self._options.own_compressor
        predivide = self._options.gradient_predivide_factor
        if powersgd is not None and bucket.flat.dtype == torch.float32:
            if bucket.number not in self._low_rank:
                self._low_rank[bucket.number] = LowRankBucket(bucket, communicator, op, powersgd.rank)
            self._low_rank[bucket.number].send(overlap)
        elif own is not None:
            send_compressed(bucket, own.compressor, communicator, op, predivide, overlap)
        else:
            bucket.send(communicator, op, predivide, overlap)
        self.bytes += bucket.bytes

    def end(
        self, updates: PartialUpdates, updated: Optional[torch.optim.Optimizer] = None, abandoned: bool = False
    ) -> Optional[ddl.Error]:
        """Do what every rank does with the round, whatever it wants with the averages; return the error, if any.

        Every ``p.grad`` is the average afterwards. ``updates`` takes the step of ``updated``, if that is given, for the
        parameters of each bucket but the last as soon as their averages are there. ``abandoned``: this rank's gradients
        are not all there; all others are told. Collective, blocking.
        """
        self.begin()
        self.send_all(abandoned)
        self.lay_out()  # parameters that were added or unfrozen; not before all ranks have sent the same
        self.send_all(abandoned)
        sent = [bucket for bucket in self.layout.buckets if bucket.sent]
        heard, lost, changed = self._receive(sent, updates, updated, abandoned)
        start = clock.now()
        mixed, said = self._reduce_sparse(heard, abandoned)
        self.seconds_waiting += clock.now() - start
        apart = None if said.in_step and not said.abandoned else who_is_apart(self._communicator, self._says(abandoned))
        # Every rank takes part, also one that finds below that its gradients were changed, and says that first.
        unequal = self._weights.compare(self._communicator, self.layout.entries)
        wrong = (None if self._check is None else self._check.end()) or unequal
        self.ended += 1
        self.open = False
        for bucket in sent:
            bucket.forget_inputs()
        self.seen = said.presence
        self.loss_due = said.presence is Presence.EVALUATING and apart is None
        if lost:
            self._low_rank.clear()
            self.layout.leave_out(self.backward_passes_per_step)
        if apart is not None:
            self.steps_taken += updates.begun()  # a part of a step is not what the others have
            return apart
        if changed:
            return ddl.InvalidState(
                f"{self.where} gradients were changed (near parameter {changed[0].name!r}) while they were being "
                "averaged, so they are undefined now. Change them in hooks of the parameters, or after backward(); "
                "with overlap_update=True after optimizer.synchronize()"
            )
        if wrong is None and mixed:
            return ddl.InvalidState(
                f"{self.where} parameter {self.layout.names[mixed[0]]!r} has a dense gradient where another rank, or a "
                "step before, had a sparse one; make all of them dense with DistributedOptimizer(sparse_as_dense=True)"
            )
        return wrong

    def _receive(
        self,
        sent: Sequence[GradientBucket],
        updates: PartialUpdates,
        updated: Optional[torch.optim.Optimizer],
        abandoned: bool,
    ) -> Tuple[List[RoundSummary], List[Entry], List[Entry]]:
        """Wait for the buckets, and let every ``p.grad`` be the average.

        Returns what ranks have said, the entries that lose their place as they are sparse, both alike on all ranks, and
        those whose gradient was changed here meanwhile.
        """
        heard: List[RoundSummary] = []
        lost: List[Entry] = []
        changed: List[Entry] = []
        for bucket in sent:
            start = clock.now()
            bucket.receive()
            self.seconds_waiting += clock.now() - start
            heard.append(bucket.heard(self._op, self._communicator.size))
            lost += bucket.find_sparse(self._op, self._communicator.size)
            if not abandoned:
                changed += bucket.hand_out(self._communicator, self._op)
            whole = not changed and heard[-1].in_step and not heard[-1].abandoned
            if updated is not None and bucket is not sent[-1] and whole:
                updates.update(updated, [entry for entry in bucket.entries if not entry.sparse])
        for bucket in sent:
            bucket.sent = False
        return heard, lost, changed

    def _reduce_sparse(self, heard: Sequence[RoundSummary], abandoned: bool) -> Tuple[List[torch.Tensor], RoundSummary]:
        """Reduce sparse gradients; return the parameters whose gradient was dense somewhere, and what ranks have said.

        In a round without a bucket, ranks say here what they have to say.
        """
        sparse = [entry.parameter for entry in self.layout.entries if entry.sparse]
        if heard and not sparse:
            return [], merge(heard)
        mixed, greatest = reduce_gradients(sparse, self._says(abandoned).bytes(), self._communicator, self._op)
        return mixed, merge([*heard, Announcement.from_bytes(greatest)])

    def average_loss(self, loss: float, another: bool = False) -> float:
        """Return the average (or sum) of the ranks' losses, after rounds in which one was ``EVALUATING``.

        ``another``: there is no loss yet, as the closure has run another backward pass, and so another round follows.
        Collective, blocking. Raises ``InvalidState``, on all ranks, if another round follows for some of them only.
        """
        value = np.array([loss, another, self.presence is not Presence.JOINED], np.float64)
        self._communicator.allreduce_(value, op=self._op)
        self.loss_due = False
        mean, going_on, present = map(float, value)
        if going_on not in (0, present):
            raise ddl.InvalidState(
                f"{self.where} closures of step() have run different numbers of backward passes on the ranks; "
                "run as many on each"
            )
        return mean

    def forget(self) -> None:
        """Let nothing of the gradients that were sent last reach the next ones."""
        for bucket in self.layout.buckets:
            bucket.forget()
        for low_rank in self._low_rank.values():
            low_rank.forget()
