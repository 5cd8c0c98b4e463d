"""``TrainingByShards``: weights have the same bits on any number of ranks, also where ranks are lost and join.

A step has V shards, however many ranks there are. Each rank computes gradients of its shards, one after another, and
keeps them until the step has ended. Where a rank is lost, the others compute its shards, and only these; then all are
added again along the tree over the V shards (ddl/adapter/virtual_shards.py). So the sum is that of an undisturbed step.

Who computes what is decided at a change of the ranks, alike on all of them, from what they tell one another: a shard
stays with the rank that has it, and the others go to those that have the fewest. If nobody has any, they are dealt in
turn, as always. The rest is in surviving.py.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, Dict, Generator, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, TypeVar

import torch

import ddl
from ddl.adapter import generation
from ddl.adapter.generation import Change
from ddl.adapter.sample_cursor import StepRecord
from ddl.adapter.step_record import note_step
from ddl.adapter.virtual_shards import owners_of, shard_seed
from ddl_torch.elastic._shard_gradients import ShardGradients
from ddl_torch.elastic.batches import ElasticBatches
from ddl_torch.elastic.surviving import SurvivingTraining
from ddl_torch.optimizer import DistributedOptimizer

__all__ = ["TrainingByShards", "deal"]

log = logging.getLogger("ddl")

T = TypeVar("T")


class TrainingByShards(SurvivingTraining):
    """Let a training have the same weights, to the bit, on any number of ranks, while ranks are lost and join.

    A step's batch is always V shards of ``batch_size`` samples, so the learning rate stays as it is. Every rank has the
    same weights at the beginning. Collective over all ranks; blocking. Works without elastic ranks, too.

    optimizer: any of torch's, not distributed; gradients are averaged at the end of the loop over a step's shards.
    batches: ``ElasticBatches`` with ``shards=V``; V is at least the largest number of ranks that there may be. If they
        do not divide V, a step takes as long as ceil(V / ranks) shards. more: as for ``Training``.

    PyTorch's random numbers (dropout) are seeded before each shard, by the seed of ``batches``, the step and the shard.
    What is random in a data set must depend on the sample and the epoch alone. Not the same on all ranks are buffers
    that a forward pass changes, as the running statistics of BatchNorm. In training they change no weights.

    Raises ``InvalidArgument`` for a distributed optimizer, and for batches without shards; ``InvalidState`` for a loop
    over shards without ``backward()``, or one that was left before its end, and as ``Training`` does.

    >>> batches = ddl_torch.elastic.ElasticBatches(dataset, 32, shards=12)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches)
    >>> training = ddl_torch.elastic.TrainingByShards(model, optimizer, batches)
    >>> for epoch in training.epochs(10):
    ...     for shards in training.steps(loader):
    ...         for x, y in shards:
    ...             loss(model(x), y).backward()
    ...         optimizer.step()
    """

    _batches: ElasticBatches

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: ElasticBatches, **more: Any
    ) -> None:
        self._gradients = ShardGradients(optimizer, keeps=generation.ranks_may_change())
        self._averaged = False  # the average is there, and the optimizer's step has not ended
        self._owners: Tuple[int, ...] = ()  # of the shards of step ``_owned``
        self._owned = -1
        super().__init__(model, optimizer, batches, **more)
        optimizer.register_step_pre_hook(self._before_step)

    def _refuse(self, optimizer: torch.optim.Optimizer, batches: Optional[ElasticBatches]) -> None:
        if isinstance(optimizer, DistributedOptimizer) or not isinstance(optimizer, torch.optim.Optimizer):
            raise ddl.InvalidArgument(
                "TrainingByShards averages gradients itself; pass a torch.optim.Optimizer that is not distributed, not "
                f"a {type(optimizer).__name__}"
            )
        if batches is None or batches.shards is None:
            raise ddl.InvalidArgument("TrainingByShards needs ElasticBatches(..., shards=V)")

    def _begin(self) -> None:
        """Nothing to do: the loop over the shards meets the error itself."""

    def steps(self, batches: Iterable[T]) -> Iterator[Iterator[T]]:
        """Yield, for each step, this rank's batches; before each step, ranks join and leave.

        batches: the ``DataLoader`` that has the ``ElasticBatches``. The loop over a step's batches runs ``backward()``
        for each. There may be more of them than usual: those of a rank that was lost. When it has ended, each
        ``p.grad`` is the average over all shards. ``optimizer.step()`` follows. If the script leaves it out, the step
        counts all the same.
        """
        loop = iter(self._batches.loop(batches))
        while True:
            self._let_ranks_change()
            if self._batches.finished:
                return
            shards = self._shards_of_step(loop)
            yield shards
            if inspect.getgeneratorstate(shards) != inspect.GEN_CLOSED:
                raise ddl.InvalidState(
                    f"{ddl.world().who} the loop over the shards of step {self.finished + 1} was left before its end"
                )
            if self._averaged:
                self._step_ended()

    def _shards_of_step(self, loop: Iterator[T]) -> Generator[T, None, None]:
        step = self.finished + 1
        self._gradients.forget()
        while self.finished < step:
            for batch in self._missing(step, loop):
                torch.manual_seed(shard_seed(self._batches.seed, self._batches.step, self._batches.shard))
                yield batch
                self._gradients.take(self._batches.shard)
            try:
                self._gradients.average()
                break
            except ddl.CommunicatorError as lost:
                if not generation.ranks_may_change() or isinstance(lost, ddl.CollectiveMismatch):
                    raise
                log.info("%s; going on with the ranks that are left", lost)
                self._change(lost, between_steps=False)
        else:  # others had finished it: there is nothing for the optimizer to do
            self._taken = True
            self._gradients.drop()
            self._gradients.forget()
        self._averaged = True

    def _missing(self, step: int, loop: Iterator[T]) -> Iterator[T]:
        """Yield the batches of those shards of ``step`` that this rank is to compute and has not."""
        owners = self._owners if self._owned == step else owners_of(ddl.size(), self._shards)
        self._gradients.begin(ddl.world(), owners)
        own = (v for v, owner in enumerate(owners) if owner == ddl.rank())
        missing = tuple(v for v in own if v not in self._gradients.kept)
        self._batches._compute(missing, generation.number(), generation.members())
        for _ in missing:
            yield next(loop)

    @property
    def _shards(self) -> int:
        assert self._batches.shards is not None
        return self._batches.shards

    def _before_step(self, _: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
            raise ddl.InvalidState(f"{ddl.world().who} a closure of optimizer.step() does not go with shards")
        if not self._averaged:
            raise ddl.InvalidState(
                f"{ddl.world().who} there are no averages for optimizer.step(): call it once, after the loop over the "
                "shards of a step"
            )

    def _step_finished(self, taken: Optional[StepRecord]) -> Optional[StepRecord]:
        self._averaged = False
        self._gradients.forget()
        note_step()
        record = self._batches._commit()
        return record if taken is None else taken

    def _division(self) -> Any:
        return None

    def _adopt(self, division: Any) -> None:
        """Nothing to do: all ranks have come to the same owners."""

    def _says(self) -> Dict[str, Any]:
        return {"shards": sum(1 << shard for shard in self._gradients.kept)}  # bits: many fit into a few words

    def _divide(self, change: Change) -> None:
        newest = max(int(said["finished"]) for said in change.said.values())
        held = {}
        for rank, said in change.said.items():
            of_this_step = int(said["shards"]) if said["finished"] == newest else 0
            held[rank] = {v for v in range(self._shards) if of_this_step >> v & 1}
        self._owners, self._owned = deal([held[rank] for rank in range(len(held))], self._shards), newest + 1


def deal(held: Sequence[Set[int]], shards: int) -> Tuple[int, ...]:
    """Return the rank of each shard: it stays where it is held, and the others go to those that have the fewest.

    held: for each rank the shards that it has. A shard that several have is the first one's.

    >>> deal([{0, 3}, {1, 4}, set()], 6)
    (0, 1, 2, 0, 1, 2)
    """
    rank_of: Dict[int, int] = {}
    for rank, own in enumerate(held):
        for shard in own:
            rank_of.setdefault(shard, rank)
    counts: List[int] = [sum(owner == rank for owner in rank_of.values()) for rank in range(len(held))]
    for shard in range(shards):
        if shard not in rank_of:
            rank_of[shard] = counts.index(min(counts))
            counts[rank_of[shard]] += 1
    return tuple(rank_of[shard] for shard in range(shards))
