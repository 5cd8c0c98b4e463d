"""``ElasticBatches``: batches for a ``DataLoader`` whose ranks come and go, so that each sample is used exactly once.

A ``DataLoader`` reads ahead of the training, so what it was given is not what was used. Here a batch counts only when
its step has ended: ``committed()``. What was read ahead and not committed is dealt again, to the ranks that there are
then. ddl/adapter/sample_cursor.py keeps the account, in positions; this file turns them into indices of a data set.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Sized, Tuple, TypeVar, Union

import torch

import ddl
from ddl.adapter.sample_cursor import SampleCursor, StepRecord
from ddl.adapter.virtual_shards import shards_of
from ddl_torch.sampler import epoch_order

__all__ = ["ElasticBatches"]

T = TypeVar("T")


class ElasticBatches(torch.utils.data.Sampler[List[int]]):
    """Deal out batches of a data set to ranks that come and go: a ``batch_sampler=`` for ``DataLoader``.

    dataset: the data set, or its length, which is 1 or more. batch_size: samples of each batch.
    shuffle: False keeps the order of the data set. seed: of the order, with the epoch; the same on every rank. It is
        the order of ``ShardedSampler``.
    shards: None: each rank has one batch in a step, so the global batch grows with the ranks. A number V: a step has V
        batches, for any number of ranks up to V; each rank has those of its shards, one after another, and the
        gradients are summed by ``ddl.adapter.virtual_shards.VirtualSum``. ``TrainingByShards`` does all of that.
        adjacent: as ``VirtualSum`` has it.
    rank, size: default those of the job, so ``ddl_torch.init()`` comes first.

    Batches are full. Where an epoch's last step has too few samples, those from the start of the order fill it up;
    ``padding`` says how many of a batch. Everything else is used exactly once in an epoch. Workers of the
    ``DataLoader`` and what it reads ahead change nothing. Not collective: every rank makes the same calls.

    Raises ``InvalidArgument`` for an empty data set, a batch size below 1, and fewer shards than ranks.

    >>> batches = ddl_torch.elastic.ElasticBatches(dataset, 32)
    >>> loader = DataLoader(dataset, batch_sampler=batches)
    >>> for epoch in range(batches.epoch, epochs):
    ...     batches.set_epoch(epoch)
    ...     for x, y in batches.loop(loader):
    ...         train(x, y)
    ...         batches.committed()

    With ``shards``, a step ends with the rank's last shard:

    >>> for x, y in batches.loop(loader):
    ...     total.add(batches.shard, gradient_of(x, y))
    ...     if batches.shard == batches.shards_of_rank[-1]:
    ...         step_with(total.average())
    ...         batches.committed()
    """

    def __init__(
        self,
        dataset: Union[Sized, int],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        shards: Optional[int] = None,
        adjacent: bool = False,
        rank: Optional[int] = None,
        size: Optional[int] = None,
    ) -> None:
        length = dataset if isinstance(dataset, int) else len(dataset)
        if length < 1 or batch_size < 1:
            raise ddl.InvalidArgument(
                f"ElasticBatches: {length} samples in batches of {batch_size}: both must be 1 or more"
            )
        self._cursor = SampleCursor(length)
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._seed = seed
        self._shards = shards
        self._adjacent = adjacent
        self._generation = 0  # this and the members: what records say
        self._members: Tuple[int, ...] = ()
        self._turn = 0  # grows whenever what was dealt is worth nothing any more
        self._dealt = 0  # steps that the last iterator has dealt, and that are not committed
        self._now: Optional[Tuple[int, int, int]] = None  # step, shard and padding of the batch that `loop` has given
        self._size = ddl.size() if size is None else size
        self._own = self._shards_of(ddl.rank() if rank is None else rank, self._size)

    def _shards_of(self, rank: int, size: int) -> Tuple[int, ...]:
        if not 0 <= rank < size:
            raise ddl.InvalidArgument(f"ElasticBatches: rank={rank} is not one of size={size} ranks")
        return (rank,) if self._shards is None else shards_of(rank, size, self._shards, adjacent=self._adjacent)

    def _renew(self) -> None:
        """Let what was dealt and not committed be dealt again."""
        self._turn += 1
        self._dealt, self._now = 0, None

    @property
    def size(self) -> int:
        """The number of ranks that samples are dealt to: in a step that has ended, those that had a part in it."""
        return self._size

    @property
    def epoch(self) -> int:
        """The number of the epoch that is dealt out; the first is 0. Once all of it is committed, that of the next."""
        return self._cursor.epoch + self._cursor.finished

    @property
    def finished(self) -> bool:
        """Whether all samples of the epoch are committed."""
        return self._cursor.finished

    @property
    def shards(self) -> Optional[int]:
        """How many shards a step has; None: as many batches as there are ranks."""
        return self._shards

    @property
    def seed(self) -> int:
        """What the order depends on, with the epoch."""
        return self._seed

    @property
    def shards_of_rank(self) -> Tuple[int, ...]:
        """The numbers of the shards that this rank has in each step, ascending; without ``shards``, its rank."""
        return self._own

    @property
    def shard(self) -> int:
        """The number of the shard whose batch ``loop`` has given last; without ``shards``, this rank's number."""
        return self._current()[1]

    @property
    def padding(self) -> int:
        """How many samples at the end of the batch that ``loop`` has given last are there only to fill it up."""
        return self._current()[2]

    @property
    def step(self) -> int:
        """The number of the step that the batch belongs to which ``loop`` has given last; it counts over all epochs."""
        return self._current()[0]

    def _current(self) -> Tuple[int, int, int]:
        if self._now is None:
            raise ddl.InvalidState(
                "ElasticBatches: there is no batch; these numbers are for the body of `loop(loader)`"
            )
        return self._now

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``; in an epoch that was broken off and loaded, stay where it was."""
        if epoch != self._cursor.epoch:
            self._cursor.begin(epoch)
            self._renew()

    def __len__(self) -> int:
        """Return how many batches this rank has until the end of the epoch, if the ranks stay as they are."""
        steps = -(-self._cursor.remaining // (self._batch_size * self._shares))
        return steps * len(self._own)

    @property
    def _shares(self) -> int:
        """How many batches a step has, over all ranks."""
        return self._size if self._shards is None else self._shards

    def _deal(self) -> Iterator[Tuple[int, int, int, Any, bool]]:
        """Yield this rank's batches from the first step on that is not committed, without the data set's order.

        Each is the number of its step, its shard, its padding, its positions, and whether it is the step's last.
        """
        ahead, own, shares = self._cursor.copy(), self._own, self._shares
        while not ahead.finished:
            for shard in own:
                positions, padding = ahead.deal(shard, shares, self._batch_size)
                yield ahead.step, shard, padding, positions, shard == own[-1]
            ahead.commit(shares, self._batch_size)

    def __iter__(self) -> Iterator[List[int]]:
        turn, self._dealt = self._turn, 0
        order = epoch_order(self._cursor.length, self._shuffle, self._seed + self._cursor.epoch)
        for _, _, _, positions, is_last in self._deal():
            self._dealt += is_last
            yield order[torch.from_numpy(positions)].tolist()
            if turn != self._turn:
                raise ddl.InvalidState(
                    "ElasticBatches: the ranks, the epoch or the state have changed, and what this iterator deals is "
                    "wrong now; use `for batch in batches.loop(loader)`, which begins anew by itself"
                )

    def loop(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield what ``loader`` yields until all of the epoch is committed, also if ranks change in between.

        loader: a ``DataLoader`` with this as its ``batch_sampler``. After ``regenerate``, ``load_state_dict`` or
        ``set_epoch`` it is begun anew, with the first step that is not committed. Meanwhile ``shard``, ``padding`` and
        ``step`` tell of the batch. Raises ``InvalidState`` if the loader ends and steps are left that were not
        committed.

        >>> for x, y in batches.loop(loader):
        ...     ...
        ...     batches.committed()
        """
        while not self._cursor.finished:
            turn = self._turn
            given = self._deal()  # the loader has such an iterator, too, which is ahead of what it gives
            for batch in loader:
                self._now = next(given)[:3]
                yield batch
                if turn != self._turn:
                    break
            else:
                if not self._cursor.finished:
                    raise ddl.InvalidState(
                        f"ElasticBatches: the loader has ended, and {self._cursor.remaining} samples of epoch "
                        f"{self._cursor.epoch} are not committed; call committed() whenever a step has ended"
                    )
        self._now = None

    def committed(self) -> StepRecord:
        """Note that a step has ended: its samples were used. Call it on every rank, after each step.

        Returns the step's line for a log (``StepRecord``). With gradients that are accumulated over several batches,
        call it once for each of them, when the update has ended. Raises ``InvalidState`` if all steps that were dealt
        are committed.

        >>> optimizer.step()
        >>> batches.committed()
        """
        self._check_dealt()
        return self._commit()

    def _check_dealt(self) -> None:
        if not self._dealt:
            raise ddl.InvalidState("ElasticBatches: no step was dealt that is not committed yet; commit each step once")

    def _commit(self, lost: Iterable[int] = ()) -> StepRecord:
        record = self._cursor.commit(
            *(self._shares, self._batch_size), lost=lost, generation=self._generation, members=self._members
        )
        self._dealt = max(0, self._dealt - 1)
        return record

    def _compute(self, shards: Tuple[int, ...], generation: int, members: Tuple[int, ...]) -> None:
        """Have this rank compute ``shards`` from the first step on that is not committed; none: do not go on then.

        The caller sees to it that each shard of a step is computed once, and commits it (``_commit``), also where this
        rank has dealt nothing of it. generation, members: see ``regenerate``.
        """
        self._generation, self._members = generation, members
        if shards != self._own:
            self._own = shards
            self._renew()

    def regenerate(
        self,
        rank: int,
        size: int,
        lost: Sequence[int] = (),
        *,
        generation: Optional[int] = None,
        members: Sequence[int] = (),
    ) -> Optional[StepRecord]:
        """Go on as ``rank`` of ``size`` ranks: some have died or joined. Call it on every rank, with the same steps.

        What was dealt and not committed is dealt again, and ``loop`` begins the loader anew. A rank that has joined
        first loads the ``state_dict`` that the others have after this call, and needs no call itself.

        lost: the ranks, by their numbers before, without which the others have finished the step that was under way.
            That step is then committed, and its record returned: do not call ``committed()`` for it. The samples of
            these ranks come first in the next step. Leave it empty if no step was under way, or if it is done again.
        generation, members: what records say from now on; by default one generation more, and no members.

        Raises ``InvalidArgument`` for numbers that cannot be, and for ``lost`` with ``shards``: a step of shards is
        finished with all of them or done again. ``InvalidState`` for ``lost`` if no step is under way.

        >>> batches.regenerate(ddl.rank(), ddl.size())
        """
        if lost and self._shards is not None:
            raise ddl.InvalidArgument(
                f"ElasticBatches: lost={list(lost)}, but a step of {self._shards} shards has no right sum without all "
                "of them; let the ranks that are left do it again, and leave lost empty"
            )
        own = self._shards_of(rank, size)  # refuses before anything has changed
        record = None
        if lost:
            self._check_dealt()
            record = self._commit(lost)
        self._size, self._own = size, own
        self._generation = self._generation + 1 if generation is None else generation
        self._members = tuple(members)
        self._renew()
        return record

    def state_dict(self) -> Dict[str, Any]:
        """Return what is committed: plain data, the same on all ranks after the same step, short for any data set.

        Also what the next records say of generation and members.
        """
        cursor = self._cursor
        if cursor.finished:
            cursor = cursor.copy()
            cursor.begin(cursor.epoch + 1)
        return {**cursor.state_dict(), **self._order(), "generation": self._generation, "members": list(self._members)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was saved; the ranks, the batch size and ``shards`` may be others than then.

        Every rank loads the same. Raises ``InvalidArgument`` if the data set has another length, or if the order would
        be another one.
        """
        for key, own in self._order().items():
            if state[key] != own:
                raise ddl.InvalidArgument(
                    f"ElasticBatches: the state was saved with {key}={state[key]!r}, this has {key}={own!r}; what is "
                    "left of the epoch is known in the same order only"
                )
        self._cursor.load_state_dict(state)
        self._generation, self._members = state["generation"], tuple(state["members"])
        self._renew()

    def _order(self) -> Dict[str, Any]:
        return {"shuffle": self._shuffle, "seed": self._seed}
