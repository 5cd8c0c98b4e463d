"""``hvd.elastic`` for PyTorch: a state of models, optimizers and samplers, and a sampler that remembers what was used.

What a state is, and what ``run`` does, stands in ddl/elastic.py, which knows no framework.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Sized

import numpy as np
import torch

import ddl
from ddl.elastic import (
    Handler,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    ObjectState,
    State,
    broadcast_values,
    run,
)
from ddl_torch.sampler import dealt, epoch_order
from ddl_torch.state import _load, broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState"]
__all__ += ["run"]


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
        self._current: List[int] = []  # what __iter__ has given out last
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``, in which nothing is used yet. At the end of each, so that a restored one goes on."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that batch number ``batch_idx`` of the last ``iter`` was used; all but its last have ``batch_size``."""
        self.record_indices(self._current[batch_idx * batch_size : (batch_idx + 1) * batch_size])

    def record_indices(self, indices: Any) -> None:
        """Note that the samples of these numbers were used."""
        self.processed_indices.update(indices)

    def reset(self) -> None:
        """Deal out what is left of the epoch, over the ranks that there are."""
        self.rank, self.num_replicas = ddl.rank(), ddl.size()
        used = self.processed_indices
        order = epoch_order(len(self.dataset), self.shuffle, self.seed + self.epoch).tolist()
        self.remaining_indices = [index for index in order if index not in used]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def state_dict(self) -> Dict[str, Any]:
        """Return the epoch and what was used of it."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was made."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def __iter__(self) -> Iterator[int]:
        left = torch.tensor(self.remaining_indices, dtype=torch.int64)
        self._current = dealt(left, 0, self.rank, self.num_replicas, self.num_samples).tolist()
        return iter(self._current)

    def __len__(self) -> int:
        return self.num_samples


class TorchState(ObjectState):
    """The state of a training: models, optimizers, samplers, whatever has ``state_dict``, and plain data.

    Each is an attribute that may be read and set, ``state.epoch += 1``. ``sync`` gives all ranks what rank 0 has;
    of an ``ElasticSampler``, what all ranks have used together.

    >>> state = ddl_torch.elastic.TorchState(model, optimizer, epoch=0, batch=0)
    """

    def __init__(
        self,
        model: Optional[torch.nn.Module] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
        **kwargs: Any,
    ) -> None:
        given: Dict[str, Any] = {"model": model, "optimizer": optimizer, **kwargs}
        super().__init__(**{name: value for name, value in given.items() if name in kwargs or value is not None})

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        for kind, handler in _HANDLERS.items():
            if isinstance(value, kind):
                return handler
        return _StateDict() if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") else None

    def reset(self) -> None:
        """Let samplers deal out anew what no rank has used. Collective, blocking; also where ``sync`` is skipped."""
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                _HANDLERS[ElasticSampler].sync(value)


class _StateDict:
    """Of anything that has one: a schedule of learning rates, say."""

    def save(self, value: Any) -> Any:
        return copy.deepcopy(value.state_dict())

    def restore(self, value: Any, saved: Any) -> None:
        value.load_state_dict(copy.deepcopy(saved))

    def sync(self, value: Any) -> None:
        value.load_state_dict(broadcast_values({"state": value.state_dict()})["state"])


class _Module(_StateDict):
    def sync(self, value: torch.nn.Module) -> None:
        broadcast_parameters(value.state_dict())


class _Optimizer(_StateDict):
    def restore(self, value: torch.optim.Optimizer, saved: Any) -> None:
        _load(value, copy.deepcopy(saved))

    def sync(self, value: torch.optim.Optimizer) -> None:
        broadcast_optimizer_state(value)


class _Sampler(_StateDict):
    def sync(self, value: ElasticSampler) -> None:
        used = np.fromiter(value.processed_indices, np.int64, len(value.processed_indices))
        epoch = ddl.broadcast_object(value.epoch)
        value.load_state_dict({"epoch": epoch, "processed_indices": ddl.allgather(used).tolist()})


_HANDLERS: Dict[type, Handler] = {
    torch.nn.Module: _Module(),
    torch.optim.Optimizer: _Optimizer(),
    ElasticSampler: _Sampler(),
}
