"""``TorchState``: what ``hvd.elastic`` saves, restores and synchronises of a training in PyTorch.

States in general are in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional

import numpy as np
import torch

import ddl
from ddl.adapter.elastic import Handler, ObjectState, broadcast_values
from ddl_torch.elastic.sampler import ElasticSampler
from ddl_torch.state import _load, broadcast_optimizer_state, broadcast_parameters

__all__ = ["TorchState"]


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
