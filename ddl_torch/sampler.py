"""``ShardedSampler``: which samples this rank trains on; an epoch may be broken off and go on with other ranks.

The order of an epoch is one permutation, the same on all ranks. Rank r takes every size-th index of it from the r-th
on, so when each rank has trained on k samples, together they have trained on the first k * size of the order. One
number, the length of this prefix, therefore says all about an epoch that was broken off. The rest is divided in the
same way, among any number of ranks.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Mapping, Optional, Sized, Union

import torch

import ddl

__all__ = ["ShardedSampler", "dealt", "epoch_order"]


def epoch_order(length: int, shuffle: bool, seed: int) -> torch.Tensor:
    """Return all numbers below ``length`` in the order of an epoch."""
    if not shuffle:
        return torch.arange(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def dealt(order: torch.Tensor, start: int, rank: int, size: int, count: int) -> torch.Tensor:
    """Return ``count`` entries of ``order``: every ``size``-th, from the ``rank``-th after ``start`` on."""
    positions = torch.arange(count) * size + start + rank
    return order[positions % max(1, len(order))]  # what is past the end is padding, from the order's start


class ShardedSampler(torch.utils.data.Sampler[int]):
    """Deal out the indices of a data set to the ranks, in another order every epoch. A ``sampler=`` for ``DataLoader``.

    dataset: the data set, or its length, which is 1 or more.
    shuffle: False keeps the order of the data set. seed: of the order, with the epoch; the same on every rank.
    remainder: what happens if the number of ranks does not divide that of the samples.
        "pad" (default): indices from the start of the order are repeated, at most size - 1, so that all ranks have
        equally many, as ``DistributedOptimizer`` needs: all ranks make the same number of steps. "drop": at most
        size - 1 are left out instead. "keep": nothing twice, nothing left out; ranks may differ by one sample, so by
        one batch: for evaluation, not for training.
    rank, size: default those of the job, so ``ddl_torch.init()`` comes first.

    With the same seed it is the order of torch's ``DistributedSampler``, and as there, call ``set_epoch`` before each
    epoch. To go on in the middle of one, tell the sampler what was trained on and save its state::

        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                ...
                sampler.record(len(x))  # before sampler.state_dict() goes into a checkpoint

    Raises ``InvalidArgument`` for an empty data set, or for one that "drop" leaves nothing of. Not collective.

    >>> loader = DataLoader(dataset, batch_size=32, sampler=ddl_torch.ShardedSampler(dataset))
    """

    def __init__(
        self,
        dataset: Union[Sized, int],
        *,
        shuffle: bool = True,
        seed: int = 0,
        remainder: str = "pad",
        rank: Optional[int] = None,
        size: Optional[int] = None,
    ) -> None:
        self._length = dataset if isinstance(dataset, int) else len(dataset)
        self._rank = ddl.rank() if rank is None else rank
        self._size = ddl.size() if size is None else size
        self._shuffle = shuffle
        self._seed = seed
        self._remainder = remainder
        if not 0 <= self._rank < self._size:
            raise ddl.InvalidArgument(f"ShardedSampler: rank={self._rank} is not one of size={self._size} ranks")
        if remainder not in ("pad", "drop", "keep"):
            raise ddl.InvalidArgument(f"ShardedSampler: remainder={remainder!r} is not 'pad', 'drop' or 'keep'")
        if self._length < (self._size if remainder == "drop" else 1):
            raise ddl.InvalidArgument(
                f"ShardedSampler: a data set of {self._length} samples has nothing for each of {self._size} ranks"
            )
        self._epoch = 0
        self._start = 0  # how much of the order was trained on before this sampler took over
        self._taken = 0  # own samples since then

    @property
    def epoch(self) -> int:
        """The number of the epoch that this sampler gives the order of; the first is 0."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``; in an epoch that was broken off and loaded, to where it was broken off."""
        if epoch != self._epoch:
            self._epoch, self._start, self._taken = epoch, 0, 0

    def __len__(self) -> int:
        """Return the number of samples of this rank: of the epoch, or of what was left of it when it was loaded."""
        remaining = self._length - self._start
        extra = {"pad": self._size - 1, "drop": 0, "keep": self._size - 1 - self._rank}[self._remainder]
        return (remaining + extra) // self._size

    def __iter__(self) -> Iterator[int]:
        if self._start and self._taken:
            raise ddl.InvalidState(
                f"ShardedSampler: what was left of epoch {self._epoch} when it was loaded has been used; call "
                f"set_epoch({self._epoch + 1})"
            )
        self._taken = 0
        order = epoch_order(self._length, self._shuffle, self._seed + self._epoch)
        return iter(dealt(order, self._start, self._rank, self._size, len(self)).tolist())

    def record(self, samples: int) -> None:
        """Note that this rank has trained on its next ``samples`` samples: after each batch, ``len(batch)``.

        Only the training loop knows: a ``DataLoader`` reads ahead. Raises ``InvalidArgument`` beyond the epoch's end.
        """
        if not 0 <= samples <= len(self) - self._taken:
            raise ddl.InvalidArgument(
                f"ShardedSampler: record({samples}) after {self._taken} of this rank's {len(self)} samples of epoch "
                f"{self._epoch}; record each batch once"
            )
        self._taken += samples

    def state_dict(self) -> Dict[str, Any]:
        """Return where the training is: plain data for a checkpoint, the same on all ranks after the same step.

        With remainder="keep", ranks may differ in an epoch's last step; save that of rank 0.
        """
        if self._taken == len(self):
            epoch, processed = self._epoch + 1, 0
        else:
            epoch, processed = self._epoch, self._start + self._taken * self._size
        return {"epoch": epoch, "processed": processed, **self._order()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was saved, on any number of ranks: every rank loads the same.

        The rest of the epoch is dealt out to the ranks there are now; nothing comes twice and nothing is missed but
        what ``remainder`` says. Raises ``InvalidArgument`` if the order would be another one.
        """
        for key, own in self._order().items():
            if state[key] != own:
                raise ddl.InvalidArgument(
                    f"ShardedSampler: the state was saved with {key}={state[key]!r}, this sampler has {key}={own!r}; "
                    "what is left of the epoch is known in the same order of the same data only"
                )
        self._epoch, self._start, self._taken = state["epoch"], state["processed"], 0

    def _order(self) -> Dict[str, Any]:
        return {"length": self._length, "shuffle": self._shuffle, "seed": self._seed}
