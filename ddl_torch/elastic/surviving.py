"""What every elastic training of PyTorch does when ranks are lost or join: all come to the same state, and go on.

Ranks that had finished the step that a death broke off give its outcome to those that had not. A rank that joins gets
the weights and the state of the optimizer between two steps: a large state earlier, while the others train
(following.py). How a step is done again, and how samples are divided, is up to the subclasses: training.py and
by_shards.py. docs/elastic.md has the whole story.
"""

from __future__ import annotations

import abc
import logging
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

import ddl
from ddl.adapter import generation
from ddl.adapter.generation import Change, StateFollower, StateSource
from ddl.adapter.sample_cursor import StepRecord
from ddl_torch.elastic.batches import ElasticBatches
from ddl_torch.elastic.following import TrainingState
from ddl_torch.elastic.state import handler_of
from ddl_torch.optimizer import DistributedOptimizer
from ddl_torch.state import broadcast_optimizer_state, broadcast_parameters, broadcast_state

__all__ = ["SurvivingTraining"]

log = logging.getLogger("ddl")

_FOLLOWED = 4 << 20  #: bytes of state from which on it is sent while the others train
_REST_SECONDS = 30.0  #: for what is left of it when all wait
_NOTHING = -1  #: finished steps of a rank that has no state, or only a part of one


class SurvivingTraining(abc.ABC):
    """A training whose ranks come and go. Used by the thread of the script."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Optional[ElasticBatches] = None,
        **more: Any,
    ) -> None:
        self._refuse(optimizer, batches)
        for name, value in more.items():
            if not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
                raise ddl.InvalidArgument(
                    f"elastic.{type(self).__name__}: {name}= has no state_dict; keep plain data in a sampler"
                )
        self.finished = 0  #: steps, alike on all ranks
        self.epoch = 0  #: that the ranks are in
        self.changes = 0  #: of the ranks, that this one has seen
        self.bytes_followed = 0  #: of the state, which this rank got while the others trained, before it joined
        self.log: List[StepRecord] = []  #: a line for each step that this rank has finished: which samples it used
        self._model, self._optimizer, self._batches, self._more = model, optimizer, batches, more
        self._state = TrainingState(model, optimizer)
        self._last: Optional[StepRecord] = None  # the line of the last step, also where the script has cleared the log
        self._taken = False  # the step that ends next has been taken from others
        self._new = False  # this rank has nothing yet
        self._source: Optional[StateSource] = None  # what ranks that join get while this one trains
        self._follower: Optional[StateFollower] = None  # where this rank got it, until it is a member
        optimizer.register_step_post_hook(self._step_ended)
        if not generation.ranks_may_change():
            return
        self._begin()
        if not generation.is_member():
            self._new, self.finished = True, _NOTHING
            self._join()
        self._source = generation.give_state(self._state.size)
        optimizer.register_step_pre_hook(self._step_begins)

    # --- what the subclasses do ---

    @abc.abstractmethod
    def _refuse(self, optimizer: torch.optim.Optimizer, batches: Optional[ElasticBatches]) -> None:
        """Raise ``InvalidArgument`` for what cannot be done again."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Prepare for ranks that come and go."""

    @abc.abstractmethod
    def _step_finished(self, taken: Optional[StepRecord]) -> Optional[StepRecord]:
        """A step of this rank has ended; ``taken``: another one's line of it, if it was taken. Return the line."""

    @abc.abstractmethod
    def _divide(self, change: Change) -> None:
        """Find out who does what from now on: all ranks come to the same, from what they have said."""

    def _says(self) -> Dict[str, Any]:
        """Return what else the others have to know at a change: a few words, which JSON can hold."""
        return {}

    @abc.abstractmethod
    def _division(self) -> Any:
        """Return what a rank must know to divide as this one does: plain data."""

    @abc.abstractmethod
    def _adopt(self, division: Any) -> None:
        """Divide as the rank that has returned ``division``: it has finished more steps."""

    # --- for the script ---

    @property
    def gives_state(self) -> bool:
        """Whether a process that joins gets the state from this rank now."""
        return self._source is not None and self._source.is_asked

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the epochs from the one that the ranks are in; see ``epoch``.

        Collective and blocking at the end: no rank leaves before all have finished.
        """
        while self.epoch < count:
            if self._batches is not None:
                self._batches.set_epoch(self.epoch)
            yield self.epoch
            self.epoch += 1
        if generation.ranks_may_change():
            self._all_finish()

    def _all_finish(self) -> None:
        """Wait for the others: a rank that leaves at once cannot help those whose last step a death breaks off."""
        while True:
            try:
                ddl.world().barrier()
                return
            except ddl.CollectiveMismatch:
                raise
            except ddl.CommunicatorError as lost:
                log.info("%s, when all was finished", lost)
                self._change(lost, between_steps=True)

    # --- a step ---

    def _let_ranks_change(self) -> None:
        """Let ranks join and leave, if there are any that want to. No step is under way here."""
        while generation.begin_step(self.finished):
            self._change(None, between_steps=True)
        if self._source is not None:
            self._source.step_ended(self.finished, self._state.read)

    def _step_begins(self, optimizer: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        """Called before each step of the optimizer, when averages are there: ranks that join do it, too."""
        if self._source is None or not self.gives_state:
            return
        if self._taken:
            self._source.cannot_tell("another rank has given it the step")
        elif args[1:] or kwargs:  # torch puts the optimizer first
            self._source.cannot_tell("the step has a closure")
        else:
            self._source.step_begins(self.finished + 1, self._state.read_step)

    def _step_ended(self, *_: Any) -> None:
        """Called after each step of the optimizer."""
        if self._follower is not None:
            return  # it was a step of the others
        taken, self._taken = self._taken, False
        if not taken:
            self.finished += 1
        record = self._step_finished(self._last if taken else None)
        if record is not None:
            self._last = record
            self.log.append(record)

    # --- a change of the ranks ---

    def _join(self) -> None:
        """Become a rank that has the state of the others. A large state comes while these go on."""
        self._follower = generation.follow_members(self._state.load, self._state.step)
        try:
            if self._state.size() < _FOLLOWED or not self._follower.catch_up():
                self._follower.close()
            self._change(None, between_steps=True)
        finally:
            self._follower.close()
            self._follower = None

    def _change(self, lost: Optional[ddl.CommunicatorError], *, between_steps: bool) -> None:
        """Come to the next generation, and have the state of those that are furthest. ``lost``: what ended this one."""
        if self._source is not None:
            self._source.is_changing = True
        follows = self._follower is not None and self._follower.follows
        while True:
            try:
                said = {"between_steps": between_steps, "follows": follows, **self._says()}
                change = generation.next_generation(self.finished, lost, **said)
                self._divide(change)
                self._settle(change)
                break
            except ddl.CollectiveMismatch:
                raise
            except ddl.CommunicatorError as error:  # another rank is lost
                log.info("%s, while the ranks were changing; once more", error)
                lost = error
        self.changes += 1
        if self._source is not None:
            self._source.is_changing = False

    def _settle(self, change: Change) -> None:
        """Give the state of those that have finished the most steps to the others. Collective, blocking."""
        finished = {rank: int(said["finished"]) for rank, said in change.said.items()}
        newest = max(finished.values())
        if newest == _NOTHING:
            raise ddl.InvalidState(
                f"{ddl.world().who} all ranks are lost that had the state of the training; those that are left have "
                "just joined. Start the job again, from what it has saved"
            )
        behind = [rank for rank, steps in finished.items() if steps < newest]
        if not behind:
            return
        root = next(rank for rank, steps in finished.items() if steps == newest)
        is_behind = ddl.rank() in behind
        if is_behind:
            self.finished = _NOTHING  # until all of it is here
        if not all(change.said[rank]["follows"] for rank in behind) or not self._has_followed(newest, behind, root):
            self._send_all(root)
        told = broadcast_state(self._rest(), root)
        if is_behind:
            self._last = None if told["record"] is None else StepRecord.from_plain(told["record"])
            if self._new:
                self._take_rest(told)
            self._adopt(told["division"])
        self._new, self.finished = False, newest

    def _rest(self) -> Dict[str, Any]:
        """Return what a rank needs besides weights and the state of the optimizer."""
        batches = self._batches
        return {
            "record": None if self._last is None else self._last.to_plain(),
            "division": self._division(),
            "epoch": self.epoch if batches is None else batches.epoch,  # the next one, if this one has ended
            "place": None if batches is None else batches.state_dict(),
            "more": {name: handler_of(value).save(value) for name, value in self._more.items()},
            "settings": self._state.settings,
        }

    def _take_rest(self, told: Dict[str, Any]) -> None:
        """Take over what a rank that joins needs. Any other is within a step: what its script changes is to come."""
        self.epoch, self._state.settings = told["epoch"], told["settings"]
        if self._batches is not None:
            self._batches.load_state_dict(told["place"])
        for name, value in self._more.items():
            handler_of(value).restore(value, told["more"][name])

    def _send_all(self, root: int) -> None:
        """Give the weights and the state of the optimizer of ``root`` to all. Collective, blocking."""
        settings = self._state.settings
        broadcast_parameters(self._model.state_dict(), root)
        broadcast_optimizer_state(self._optimizer, root)
        self._state.settings = settings
        told = ddl.allgather_object(self._state.digests([0], 1))
        if any(digests != told[root] for digests in told):
            raise ddl.InternalError(f"{ddl.world().who} ranks have different weights after they were sent: {told}")

    def _has_followed(self, newest: int, newcomers: Sequence[int], root: int) -> bool:
        """Let ``newcomers`` do what is left of the steps; return whether they have the state then. Collective."""
        follower = self._follower
        stayed = [rank for rank in range(ddl.size()) if rank not in newcomers]
        if follower is not None:
            complete = follower.complete(newest, _REST_SECONDS)
            digests = self._state.digests(range(len(stayed)), len(stayed)) if complete else []
        else:
            digests = self._state.digests([stayed.index(ddl.rank())], len(stayed))
        told: List[List[str]] = ddl.allgather_object(digests)
        expected = [told[rank][0] for rank in stayed]
        equal = all(told[rank] == expected for rank in newcomers)
        if not equal:
            log.info("%s newcomers could not follow the others' steps, and get all of the state now", ddl.world().who)
            return False
        if follower is not None:
            self.bytes_followed = follower.bytes
        if isinstance(self._optimizer, DistributedOptimizer):
            self._optimizer._ddl.restart()
        broadcast_parameters(self._state.buffers(), root)
        return True
