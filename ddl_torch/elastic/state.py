"""``TorchState``: what ``hvd.elastic`` saves, restores and synchronises of a training in PyTorch.

States in general are in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Optional

import numpy as np
import torch

import ddl
from ddl.adapter import generation
from ddl.adapter.elastic import Handler, ObjectState, broadcast_values
from ddl_torch.elastic.sampler import ElasticSampler
from ddl_torch.state import _load, broadcast_optimizer_state, broadcast_parameters

__all__ = ["TorchState", "handler_of"]


class TorchState(ObjectState):
    """The state of a training: models, optimizers, samplers, whatever has ``state_dict``, and plain data.

    Each is an attribute that may be read and set, ``state.epoch += 1``. ``sync`` gives all ranks what rank 0 has;
    of an ``ElasticSampler``, what all ranks have used together, those that are lost or have left included.

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
        return handler_of(value) if hasattr(value, "state_dict") and hasattr(value, "load_state_dict") else None

    def agree(self) -> None:
        """Let samplers deal out anew what no rank has used. Collective, blocking."""
        for name in self._names:
            value = getattr(self, name)
            if isinstance(value, ElasticSampler):
                _HANDLERS[ElasticSampler].sync(value)


def handler_of(value: Any) -> Handler:
    """Return how a value with ``state_dict`` and ``load_state_dict`` is kept."""
    return next((handler for kind, handler in _HANDLERS.items() if isinstance(value, kind)), _StateDict())


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
    """Saved with how the epoch was dealt out: what a rank that is gone had used follows from what this one has."""

    def save(self, value: ElasticSampler) -> Any:
        value.dealt_to = generation.members()
        deal = (value.remaining_indices, value.rank, value.num_replicas, value.dealt_to)  # replaced, never changed
        return super().save(value), deal

    def restore(self, value: ElasticSampler, saved: Any) -> None:
        state, deal = saved
        super().restore(value, state)
        value.remaining_indices, value.rank, value.num_replicas, value.dealt_to = deal

    def sync(self, value: ElasticSampler) -> None:
        members = generation.members()
        known = len(value.dealt_to) == value.num_replicas  # a newcomer has no part in any deal yet
        gone = [rank for rank, member in enumerate(value.dealt_to) if member not in members] if known else []
        own = [*value.processed_indices, *value.used_by(gone)]
        epoch = ddl.broadcast_object(value.epoch)
        used = ddl.allgather(np.array(own, np.int64)).tolist()
        value.load_state_dict({"epoch": epoch, "processed_indices": used})
        value.dealt_to = members


_HANDLERS: Dict[type, Handler] = {
    torch.nn.Module: _Module(),
    torch.optim.Optimizer: _Optimizer(),
    ElasticSampler: _Sampler(),
}
