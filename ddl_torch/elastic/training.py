"""``Training``: a script with a ``DistributedOptimizer`` goes on in memory when ranks are lost or join.

A step that is broken off is done again by the ranks that are left, with the gradients that they had: what is sent is
kept until the step has ended. The rest is in surviving.py.
"""

from __future__ import annotations

import logging
from typing import Any, Iterable, Iterator, Optional, Sequence, Set, Tuple, TypeVar

import torch

import ddl
from ddl.adapter import generation
from ddl.adapter.generation import Change
from ddl.adapter.sample_cursor import StepRecord
from ddl_torch.elastic.batches import ElasticBatches
from ddl_torch.elastic.surviving import SurvivingTraining
from ddl_torch.gradients.reducer import GradientReducer
from ddl_torch.optimizer import DistributedOptimizer

__all__ = ["Training"]

log = logging.getLogger("ddl")

T = TypeVar("T")


class Training(SurvivingTraining):
    """Let the training of ``model`` by ``optimizer`` survive ranks that are lost, and let others join.

    Collective over all ranks, after the optimizer was wrapped; blocking. A process that was started later becomes a
    rank here, and has the others' state then. It keeps each gradient that is sent until the step has ended (what that
    costs: docs/elastic.md), and looks once in each step whether ranks are to join or leave.

    Others join and leave where a step begins: at the top of a loop over ``steps``.

    optimizer: a ``DistributedOptimizer`` over all ranks, with op Average or Sum, without overlap_update.
    batches: an ``ElasticBatches``, of which this then keeps the account: each sample is used exactly once in an epoch,
        and ``committed`` and ``regenerate`` are not for the script. Without it, samples are the script's affair.
    more: what else changes in a step and has ``state_dict``: a schedule of learning rates, a scaler.

    Where ranks do not come and go, it only counts. Raises ``InvalidArgument`` for another optimizer. From then on,
    ``backward()`` and ``step()`` raise ``LeftOut`` where the others went on without this rank, and ``InvalidState`` if
    nobody is left who has the state.

    >>> batches = ddl_torch.elastic.ElasticBatches(dataset, 32)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches)
    >>> training = ddl_torch.elastic.Training(model, optimizer, batches, schedule=schedule)
    >>> for epoch in training.epochs(90):
    ...     for x, y in training.steps(loader):
    ...         optimizer.zero_grad()
    ...         loss(model(x), y).backward()
    ...         optimizer.step()
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Optional[ElasticBatches] = None,
        **more: Any,
    ) -> None:
        self._dealt_to: Tuple[int, ...] = ()  # the members among which samples are dealt now, by their numbers
        self._dealt_in = 0  # the generation in which that was decided
        self._dead: Set[int] = set()  # their ranks that are lost in the step that is under way, or comes next
        super().__init__(model, optimizer, batches, **more)

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield ``batches``, one for each step; before each, ranks join and leave if there are any that want to.

        With an ``ElasticBatches``: the ``DataLoader`` that has it.
        """
        loop = iter(batches if self._batches is None else self._batches.loop(batches))
        while True:
            self._let_ranks_change()
            try:
                batch = next(loop)
            except StopIteration:
                return
            yield batch

    def _refuse(self, optimizer: torch.optim.Optimizer, batches: Optional[ElasticBatches]) -> None:
        """Raise ``InvalidArgument`` for what this cannot do again."""
        reducer = getattr(optimizer, "_ddl", None)
        if not isinstance(optimizer, DistributedOptimizer) or not isinstance(reducer, GradientReducer):
            raise ddl.InvalidArgument(
                "elastic.Training needs a DistributedOptimizer with op Average or Sum, whose averages can be made again"
            )
        if reducer.updates_early:
            raise ddl.InvalidArgument(
                "elastic.Training: with overlap_update=True a part of the weights is updated before all averages are "
                "there, so a step that is broken off cannot be done again; leave it out"
            )
        if batches is not None and batches.shards is not None:
            raise ddl.InvalidArgument(
                f"elastic.Training: a step of these batches has {batches.shards} shards, which a DistributedOptimizer "
                "would average one by one; use elastic.TrainingByShards"
            )

    def _begin(self) -> None:
        reducer = getattr(self._optimizer, "_ddl", None)
        assert isinstance(reducer, GradientReducer)
        reducer.recover_by(self._recover)
        if generation.is_member():
            self._deal_anew()

    def _recover(self, lost: ddl.CommunicatorError) -> bool:
        """A round was broken off: go on with the ranks that are left. See ``ddl_torch.gradients.reducer.Recovery``."""
        log.info("%s; going on with the ranks that are left", lost)
        begun = self.finished + 1
        self._change(lost, between_steps=False)
        self._taken = self.finished >= begun
        return not self._taken

    def _step_finished(self, taken: Optional[StepRecord]) -> Optional[StepRecord]:
        if self._batches is None:
            return None
        if taken is not None:  # the others may have done it again without some
            return self._deal(taken.lost) if taken.lost else self._batches.committed()
        if self._dead:  # it was dealt to them, too, and has ended without them
            lost, self._dead = sorted(self._dead), set()
            return self._deal_anew(lost)
        return self._batches.committed()

    def _deal_anew(self, lost: Sequence[int] = ()) -> Optional[StepRecord]:
        """Deal samples to the ranks that there are now, after a step that has ended without ``lost``, if any."""
        self._dealt_to, self._dealt_in = generation.members(), generation.number()
        return self._deal(lost)

    def _deal(self, lost: Sequence[int] = ()) -> Optional[StepRecord]:
        if self._batches is None:
            return None
        members = self._dealt_to
        rank = members.index(generation.members()[ddl.rank()])
        return self._batches.regenerate(rank, len(members), lost, generation=self._dealt_in, members=members)

    def _divide(self, change: Change) -> None:
        """Find out among whom samples are divided from now on: all ranks come to the same.

        A step that is under way was dealt to the ranks that there were when it began. It ends without those that are
        lost, and their samples come first in the next one.
        """
        stayed = [said for said in change.said.values() if not said["newcomer"]]
        if all(said["between_steps"] for said in stayed) and not self._dead:
            self._deal_anew()
        else:
            members = generation.members()
            self._dead |= {rank for rank, number in enumerate(self._dealt_to) if number not in members}

    def _division(self) -> Any:
        return self._dealt_to, self._dealt_in, self._dead

    def _adopt(self, division: Any) -> None:
        self._dealt_to, self._dealt_in, self._dead = division
        if self._new:  # any other rank deals anew when the step that it is in has ended
            self._deal()
