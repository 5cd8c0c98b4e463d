"""``ElasticSampler``: deals out a data set, and remembers what of an epoch was used."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set, Sized, Tuple

import torch

import ddl
from ddl_torch.sampler import dealt, epoch_order

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deal out the indices of ``dataset`` to the ranks; those that were recorded do not come again in their epoch.

    shuffle: False keeps the order of the data set. seed: of the order, with the epoch; the same on every rank. Where
    the ranks do not divide what is left, some indices come twice, so that all ranks have equally many. After
    ``ddl_torch.init()``; not collective. ``ShardedSampler`` does with one number what this does with a set, and takes
    what ranks trained on as equally much; this one does not.

    >>> sampler = ddl_torch.elastic.ElasticSampler(dataset)
    >>> for number, (x, y) in enumerate(DataLoader(dataset, batch_size=32, sampler=sampler)):
    ...     sampler.record_batch(number, 32)
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: Set[int] = set()  #: of this rank, or of all after ``TorchState.sync``
        self._processed_num = 0
        self._current: List[int] = []  # what __iter__ has given out last
        self.dealt_to: Tuple[int, ...] = ()  #: the processes of the last deal, by rank; ``TorchState`` keeps it
        self.reset()

    @property
    def processed_num(self) -> int:
        """How many samples of this epoch all ranks together have used, if all have recorded as much as this one.

        As Horovod counts: each batch that is recorded counts ``batch_size`` times the ranks, also a short last one.
        After ``TorchState.sync`` it is the exact number. To set it says that so many of the epoch's order were used.
        """
        return self._processed_num

    @processed_num.setter
    def processed_num(self, number: int) -> None:
        self.processed_indices = set(self._order()[:number])
        self._processed_num = number

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``, in which nothing is used yet. At the end of each, so that a restored one goes on."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that batch number ``batch_idx`` of the last ``iter`` was used; all but its last have ``batch_size``."""
        self.processed_indices.update(self._current[batch_idx * batch_size : (batch_idx + 1) * batch_size])
        self._processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Any) -> None:
        """Note that the samples of these numbers were used."""
        used = set(indices)
        self.processed_indices |= used
        self._processed_num += len(used) * self.num_replicas

    def reset(self) -> None:
        """Deal out what is left of the epoch, over the ranks that there are."""
        self.rank, self.num_replicas = ddl.rank(), ddl.size()
        used = self.processed_indices
        self.remaining_indices = [index for index in self._order() if index not in used]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def used_by(self, ranks: Sequence[int]) -> List[int]:
        """Return what these ranks of the last deal have used of it, if each has used as much as this one.

        That holds in training, where ranks step together. So it is known of ranks that are gone, too.
        """
        used: List[int] = []
        for start in range(0, len(self.remaining_indices), self.num_replicas):
            block = self.remaining_indices[start : start + self.num_replicas]  # one index for each rank
            if self.rank < len(block) and block[self.rank] in self.processed_indices:
                used += [block[rank] for rank in ranks if rank < len(block)]
        return used

    def _order(self) -> List[int]:
        order: List[int] = epoch_order(len(self.dataset), self.shuffle, self.seed + self.epoch).tolist()
        return order

    def state_dict(self) -> Dict[str, Any]:
        """Return the epoch and what was used of it: ``epoch``, ``processed_indices`` and ``processed_num``."""
        used = set(self.processed_indices)
        return {"epoch": self.epoch, "processed_indices": used, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was made. Of the two ways to say what was used, one is enough; indices win."""
        self.epoch = state_dict["epoch"]
        if "processed_indices" in state_dict:
            self.processed_indices = set(state_dict["processed_indices"])
            self._processed_num = state_dict.get("processed_num", len(self.processed_indices))
        else:
            self.processed_num = state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        remaining = torch.tensor(self.remaining_indices, dtype=torch.int64)
        self._current = dealt(remaining, 0, self.rank, self.num_replicas, self.num_samples).tolist()
        return iter(self._current)

    def __len__(self) -> int:
        return self.num_samples
