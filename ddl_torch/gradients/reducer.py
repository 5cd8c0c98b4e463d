"""``GradientReducer``: averages gradients over the ranks, while the backward pass goes on or right at its end.

Hooks copy each gradient into its bucket as soon as autograd has it. ``backward()`` ends with a *round*, which averages
all buckets (rounds.py). So ``p.grad`` has averages after ``backward()``, as on one machine: an AMP
scaler, clipping, a hook of ``step``. Only ``overlap_update`` waits in ``step`` instead, and then ``p.grad`` cannot be
read before. A rank that comes to ``step`` without a backward pass has its round there.

overlap.py decides whether a full bucket is averaged at once, by DDL's own thread, or at the end of the pass.

Called by one thread: the one that runs backward and step. Hooks know the reducer by a weak reference, so that they keep
nothing alive; they go when it goes.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

import ddl
from ddl.adapter.step_record import note_step
from ddl_torch.gradients.announcement import Presence
from ddl_torch.gradients.backward import BackwardPasses
from ddl_torch.gradients.closure import average_before_step
from ddl_torch.gradients.entry import Entry
from ddl_torch.gradients.layout import BucketLayout
from ddl_torch.gradients.options import OptimizerOptions
from ddl_torch.gradients.rounds import Rounds
from ddl_torch.gradients.update import PartialUpdates

__all__ = ["GradientReducer", "Recovery"]

#: Comes to the next generation of ranks after such an error. Returns whether the round is to be done again there; else
#: the others have taken the step, and this rank has its outcome. Raises what cannot be recovered from.
Recovery = Callable[[ddl.CommunicatorError], bool]


class GradientReducer:
    """The gradients of one optimizer. ``synchronized``: they are averaged and none has come since.

    ``asked``: they were asked for by ``synchronize`` of the optimizer. ``own``: communicators to be closed with the
    optimizer, to which those are added that are made here.
    """

    def __init__(
        self,
        communicator: ddl.Communicator,
        options: OptimizerOptions,
        backward_passes_per_step: int,
        own: List[ddl.Communicator],
    ) -> None:
        self.synchronized = self.asked = False
        self._options = options
        self._layout = BucketLayout(communicator, options, own, self)
        self._rounds = Rounds(self._layout, options, backward_passes_per_step)
        self._passes = BackwardPasses(self)
        self._passes_of_round = 0
        self._sending = False  # gradients of this backward pass are sent, and not only added up
        self._flat: Optional[bool] = None  # no backward pass has run others inside, None: there was none yet
        self._summed = False  # p.grad was summed up before this round, and not used since
        self._skip = False
        self._updates = PartialUpdates()
        self._recovery: Optional[Recovery] = None
        self._taken = False  # the step that comes has been taken by others, and this rank has its outcome
        self._added: Sequence[Tuple[str, torch.Tensor]] = ()  # parameters that no round has seen yet

    # --- what the optimizer is about ---

    @property
    def communicator(self) -> ddl.Communicator:
        """That whose ranks average now."""
        return self._layout.communicator

    @property
    def names(self) -> Dict[torch.Tensor, str]:
        """The name of each parameter."""
        return self._layout.names

    @property
    def presence(self) -> Presence:
        """What this rank says of itself in the rounds to come."""
        return self._rounds.presence

    @presence.setter
    def presence(self, presence: Presence) -> None:
        self._rounds.presence = presence

    @property
    def backward_passes_per_step(self) -> int:
        """See ``DistributedOptimizer``."""
        return self._rounds.backward_passes_per_step

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self._rounds.backward_passes_per_step = passes

    @property
    def compression(self) -> str:
        """See ``DistributedOptimizer.compression``."""
        return self.communicator.wire if self._options.powersgd is None else "powersgd"

    def statistics(self) -> Dict[str, Union[int, float]]:
        """Return counts since the beginning; see ``DistributedOptimizer.statistics``."""
        rounds = self._rounds
        return {"steps": rounds.ended, "seconds_waiting": rounds.seconds_waiting, "bytes": rounds.bytes}

    def add(
        self,
        parameters: Sequence[Tuple[str, torch.Tensor]],
        groups: Optional[Mapping[torch.Tensor, int]] = None,
        sparse: bool = False,
    ) -> None:
        """Take parameters on; they get places in the next ``lay_out`` or ``synchronize``: see ``BucketLayout.add``."""
        self._layout.add(parameters, groups or {}, sparse)
        self._added = [*self._added, *parameters]

    def lay_out(self) -> None:
        """Give a place to every parameter that requires a gradient and has none. Collective if there is one."""
        self._rounds.lay_out()

    def choose_wire(self) -> None:
        """Measure how the buckets are averaged fastest, and do so from now on. Collective; before the first step."""
        self._layout.choose_wire()

    def go_over_to(self, communicator: ddl.Communicator, *, afresh: bool) -> None:
        """Go on with other ranks; gradients of the round that was open are dropped. Collective, blocking.

        ``afresh``: some ranks are new.
        """
        self._updates.show()
        self._close_round()
        self._rounds.go_over_to(communicator, afresh=afresh)

    def release(self) -> None:
        """Leave the parameters to another reducer."""
        self._layout.release()
        self._close_round()

    # --- a backward pass ---

    def backward_began(self) -> None:
        """Called by the first hook of a backward pass."""
        self._begin()
        self._passes_of_round += 1
        self._sending = self._passes_of_round >= self.backward_passes_per_step

    def gradient_came(self, entry: Entry) -> None:
        """Called by autograd when ``p.grad`` of a parameter has its value of this backward pass."""
        self._passes.gradient_came()
        bucket = entry.bucket
        if bucket is None:  # sparse, or unfrozen since buckets were laid out: the end of the round sees to it
            return
        if bucket.sent:
            raise ddl.InvalidState(
                f"{self._rounds.where} parameter {entry.name!r} got a second gradient in one backward pass, after its "
                f"bucket.{bucket.number} was sent: the pass runs others inside. Use checkpoints with "
                "use_reentrant=False, or DistributedOptimizer(overlap=False)"
            )
        if self._summed and entry.shares_memory():
            raise ddl.InvalidState(
                f"{self._rounds.where} parameter {entry.name!r} got a gradient in another backward pass, on top of a "
                "sum over the ranks. To add up over several backward passes, say how many with "
                "backward_passes_per_step; to drop gradients, call optimizer.zero_grad(); else call optimizer.step() "
                "in between"
            )
        if not entry.is_final():
            return  # the end of the backward pass sees to it
        if self._rounds.keeps_inputs and not bucket.on_gpu:
            entry.adopt_later()  # when the bucket is sent: then what has come is what is sent
        else:
            entry.adopt()
        bucket.gradient_came()
        if self._sending and entry.expected:
            entry.expected = False
            bucket.pending -= 1
            if self._layout.overlap and self._flat and not self._passes.nested:
                self._send_full()

    def _send_full(self) -> None:
        try:
            self._rounds.send_full()
        except ddl.CommunicatorError:
            if self._recovery is None:
                raise
            self._flat = None  # send no more before the end of the pass, which sees to it

    def is_complete(self) -> bool:
        """Return whether this pass has brought all gradients that it could."""
        return self._sending and self._rounds.is_complete()

    def backward_ended(self) -> None:
        """Called when a backward pass has brought all its gradients: average them, if it was the one that sends."""
        # A pass that runs others inside may bring a gradient twice, so from then on nothing is sent before the end.
        self._flat = self._flat is not False and not self._passes.nested
        if self._sending and self._options.overlap_update:
            self._rounds.send_all()
            for entry in self._layout.entries:
                entry.refuse()
        elif self._sending:
            self.synchronize()

    def backward_failed(self) -> None:
        """Called when a backward pass begins after one that an exception has ended, and nothing was dropped since."""
        kept = [entry.name for entry in self._layout.entries if entry.view is not None and entry.has_what_came()]
        if self._sending:
            self._end_round(abandoned=True)
            self._rounds.forget()
        self._close_round()
        if kept:
            raise ddl.InvalidState(
                f"{self._rounds.where} an exception has ended the last backward pass, and parameter {kept[0]!r} still "
                "has its gradient, a part of all. Call optimizer.zero_grad() where the exception is caught"
            )

    # --- a round ---

    def _begin(self) -> None:
        if self._rounds.begin():
            # An average may be averaged again, with what comes on top: what is alike everywhere stays as it is.
            self._summed = self.synchronized and self._options.op == ddl.Sum and self.communicator.size > 1
            self._passes_of_round, self._sending = 0, False
        self.synchronized = self.asked = False

    def _end_round(
        self, updated: Optional[torch.optim.Optimizer] = None, abandoned: bool = False
    ) -> Optional[ddl.Error]:
        """End the round, as ``Rounds.end`` does."""
        self._begin()
        self._passes.stop()
        while True:
            try:
                error = self._rounds.end(self._updates, updated, abandoned)
                break
            except ddl.CommunicatorError as lost:
                if self._recovery is None or isinstance(lost, ddl.CollectiveMismatch):
                    raise
                if not self._recover(lost, self._recovery):
                    return None
        self.synchronized, self._added = True, ()
        return error

    @property
    def updates_early(self) -> bool:
        """Whether ``step`` updates a part of the parameters while averages are awaited."""
        return self._options.overlap_update

    def recover_by(self, recovery: Recovery) -> None:
        """Do a round that is broken off again, with the ranks that ``recovery`` finds."""
        self._recovery = recovery
        self._rounds.keeps_inputs = True

    def _recover(self, lost: ddl.CommunicatorError, recovery: Recovery) -> bool:
        """Come to the next generation; return whether the round is to be done again."""
        if any(entry.sparse for entry in self._layout.entries):
            raise ddl.InvalidState(
                f"{self._rounds.where} a rank was lost while sparse gradients were exchanged, which cannot be done "
                "again; use DistributedOptimizer(sparse_as_dense=True), or hvd.elastic.run"
            ) from lost
        self._rounds.take_back()
        if recovery(lost):
            self._rounds.resume()
            self.synchronized = self.asked = False
            return True
        for entry in self._layout.entries:
            entry.parameter.grad = None  # so ``step`` leaves parameters and state as they are
        self._close_round()
        self.synchronized = self._taken = True
        return False

    def _close_round(self) -> None:
        """Let the next gradient begin another round."""
        self._passes.stop()
        self._rounds.open = self.synchronized = self.asked = False

    def synchronize(self, updated: Optional[torch.optim.Optimizer] = None) -> None:
        """Send what was not sent, wait for everything, and make every ``p.grad`` the average.

        ``updated``: takes its step for the parameters of each bucket but the last as soon as their averages are there;
        their gradients are hidden until ``after_step``.
        """
        error = self._end_round(updated)
        if error is not None:
            raise error

    def discard(self) -> None:
        """Forget the gradients of this round. What other ranks do, which may use theirs, has to be done here too."""
        evaluating = self.presence is Presence.EVALUATING
        dropped = self.synchronized and not evaluating  # LBFGS has used what it asked for
        if self._rounds.open and self._sending:
            # What is wrong with gradients that nobody here uses is no error here.
            self._end_round(abandoned=self._passes.running)
            dropped = True
        if self._rounds.loss_due and not evaluating:
            self.average_loss(0.0)
        if dropped:
            self._rounds.forget()
        self._close_round()

    # --- a step ---

    def before_step(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
        """Average what ``step`` is about to use; returns the arguments that it is to have instead, None: the same."""
        if self._added and self.synchronized:
            self._refuse_gradients_of_added()
        if self._skip:
            return None
        self._updates = PartialUpdates()
        try:
            return average_before_step(self, args, kwargs)
        except BaseException:
            self._updates.show()
            raise

    def _refuse_gradients_of_added(self) -> None:
        for name, parameter in self._added:
            if parameter.grad is not None:
                raise ddl.InvalidState(
                    f"{self._rounds.where} parameter {name!r} was added after the gradients of this step were "
                    "averaged, and has one of this rank alone. Call add_param_group before backward(), or after step() "
                    "and zero_grad(). The weights are as before this step"
                )

    def after_step(self, kwargs: Dict[str, Any]) -> None:
        """Note that gradients have been used. A step that calls its base class's step comes here twice."""
        self._updates.show()
        if self.synchronized:
            note_step()
        self._rounds.steps_taken += self.synchronized and not self._taken
        self._taken = False
        self.synchronized = self.asked = False

    def restart(self) -> None:
        """Note that all ranks have the same weights again, after a checkpoint, say: count steps anew."""
        self._rounds.steps_taken = 0

    def updated_early(self, optimizer: torch.optim.Optimizer) -> Optional[torch.optim.Optimizer]:
        """Return ``optimizer`` if its parameters are updated while other averages are awaited: see ``overlap_update``.

        Not if a user's hook comes before the step: it is to see all averages (and may clip them).
        """
        ours_alone = len(optimizer._optimizer_step_pre_hooks) == 1
        return optimizer if self._options.overlap_update and ours_alone else None

    @contextlib.contextmanager
    def skipping(self) -> Iterator[None]:
        """``before_step`` inside this context averages nothing."""
        self._skip = True
        try:
            yield
        finally:
            self._skip = False

    def average_loss(self, loss: float) -> float:
        """Return the average (or sum) of the ranks' losses, after the rounds of a closure. Collective, blocking."""
        return self._rounds.average_loss(loss)

    def step_without_gradients(self) -> bool:
        """Take part in a step of the other ranks without gradients, for ``join``; return whether there was one.

        There was none if all ranks have called this. Every ``p.grad`` is None afterwards.
        """
        self.discard()
        self.presence = Presence.JOINED
        parameters = [entry.parameter for entry in self._layout.entries]
        for parameter in parameters:
            parameter.grad = None
        try:
            self.synchronize()
            if self._rounds.loss_due:
                self.average_loss(0.0)
            if self._rounds.seen is Presence.JOINED:
                self.restart()  # weights differ now, until one rank's are broadcast
            return self._rounds.seen is not Presence.JOINED
        finally:
            self.presence, self.synchronized = Presence.TRAINING, False
            for parameter in parameters:
                parameter.grad = None
