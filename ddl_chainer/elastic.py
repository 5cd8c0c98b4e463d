"""Elastic training in Chainer: a state of optimizers and their models. ``run`` and ``fenced`` are in ddl/adapter/.

States in general are in ddl/adapter/elastic.py, which knows no framework.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional

import chainer
import numpy as np
from chainer.serializers import DictionarySerializer, NpzDeserializer

import ddl
from ddl.adapter.elastic import Handler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from ddl.adapter.fence import fenced
from ddl.adapter.rank_prefix import naming_rank

__all__ = ["ChainerState", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "fenced", "run"]


class ChainerState(ObjectState):
    """The state of a training: optimizers with their models, other links, and plain data, ``state.epoch += 1``.

    optimizer: one of Chainer's, or of ``create_multi_node_optimizer``, after ``setup``. Kept are its model's parameters
    and persistent values, what its update rules keep, such as momenta, the counts of updates, and all of its numbers,
    such as the learning rate. More optimizers and links may be given by name. ``sync`` gives all ranks what rank 0 has,
    and then ChainerMN's optimizer does not begin with a broadcast any more. Raises ``InvalidArgument`` for an optimizer
    without a model, and from ``sync``, on the ranks whose model is not like that of rank 0.

    >>> state = ddl_chainer.elastic.ChainerState(optimizer, epoch=0, batch=0)
    """

    @naming_rank
    def __init__(self, optimizer: Any, **values: Any) -> None:
        if not _has_model(optimizer):
            kind = type(optimizer).__name__
            raise ddl.InvalidArgument(f"ChainerState: the {kind} has no model yet; call optimizer.setup(model) before")
        super().__init__(optimizer=optimizer, **values)

    def handler(self, value: Any) -> Optional[Handler]:
        """Return how ``value`` is kept; None for plain data."""
        return _OF_OPTIMIZERS if _has_model(value) else _OF_LINKS if isinstance(value, chainer.Link) else None


def _has_model(value: Any) -> bool:
    return isinstance(getattr(value, "target", None), chainer.Link)


class _LinkHandler:
    """Saved as Chainer does it: arrays by their paths. A parameter whose size is not known yet is None."""

    def save(self, value: Any) -> Any:
        writer = DictionarySerializer()
        value.serialize(writer)
        return {path: None if x.dtype == object else x.copy() for path, x in writer.target.items()}

    def restore(self, value: Any, saved: Any) -> None:
        value.serialize(NpzDeserializer({path: np.array(x) for path, x in saved.items()}))

    @naming_rank
    def sync(self, value: Any) -> None:
        saved = ddl.world().broadcast_object(self.save(value) if ddl.rank() == 0 else None)
        _check_alike(self.arrays(self.save(value)), self.arrays(saved))
        self.restore(value, saved)

    def arrays(self, saved: Any) -> Dict[str, Any]:
        """Return the arrays of a model, by their paths."""
        return saved


class _OptimizerHandler(_LinkHandler):
    """With its model: what each parameter's update rule keeps, and numbers, which are wherever Chainer has put them."""

    def save(self, value: Any) -> Any:
        rules = {name: (rule._state, _array(rule._fp32_param)) for name, rule in _rules(value).items()}
        return {
            "model": super().save(value.target),
            "rules": copy.deepcopy(rules),
            "numbers": [_numbers_of(part) for part in _parts(value)],
        }

    def restore(self, value: Any, saved: Any) -> None:
        super().restore(value.target, saved["model"])
        for name, rule in _rules(value).items():
            rule._state, full = copy.deepcopy(saved["rules"][name])
            rule._fp32_param = None if full is None else chainer.Parameter(full)
        for part, numbers in zip(_parts(value), saved["numbers"]):
            vars(part).update(numbers)

    def sync(self, value: Any) -> None:
        super().sync(value)
        if hasattr(value, "is_changed"):  # ChainerMN's: a rank that joins would broadcast, while the others average
            value.is_changed(value.target)

    def arrays(self, saved: Any) -> Dict[str, Any]:
        arrays: Dict[str, Any] = saved["model"]
        return arrays


def _rules(optimizer: Any) -> Dict[str, Any]:
    """Return the update rules of the model's parameters, by their names."""
    named = sorted(optimizer.target.namedparams())
    return {name: parameter.update_rule for name, parameter in named if parameter.update_rule is not None}


def _parts(optimizer: Any) -> List[Any]:
    """Return what has numbers: the optimizer that ChainerMN's wraps, its update rules, and their hyperparameters."""
    parts = [getattr(optimizer, "actual_optimizer", optimizer), *_rules(optimizer).values()]
    return [*parts, *(part.hyperparam for part in parts if hasattr(part, "hyperparam"))]


def _numbers_of(part: Any) -> Dict[str, Any]:
    return {name: value for name, value in vars(part).items() if isinstance(value, (bool, int, float, np.number))}


def _array(variable: Any) -> Any:
    return None if variable is None else variable.array


def _check_alike(own: Dict[str, Any], other: Dict[str, Any]) -> None:
    """Raise ``InvalidArgument`` unless both have the same names and, where both have a size, types and shapes."""
    for path in sorted(own.keys() | other.keys()):
        pair = [arrays[path] if path in arrays else "nothing" for arrays in (own, other)]
        lines = [x if isinstance(x, str) else "None" if x is None else f"{x.dtype} of shape {x.shape}" for x in pair]
        if lines[0] != lines[1] and "None" not in lines:
            raise ddl.InvalidArgument(
                f"sync: {path} of the model is {lines[0]}, on rank 0 {lines[1]}. Build the same model on every rank"
            )


_OF_LINKS, _OF_OPTIMIZERS = _LinkHandler(), _OptimizerHandler()
