"""Every optimizer that the installed torch has, for tests that hold for all of them; a new one is not forgotten."""

from __future__ import annotations

import inspect
from typing import Any, Dict, List, Tuple

import torch

#: Settings without which an optimizer does less than it can: state that it would not keep, decisions it would not make.
SETTINGS: Dict[str, Dict[str, Any]] = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True},
    "Adam": {"amsgrad": True, "weight_decay": 1e-3},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "LBFGS": {"lr": 0.5, "history_size": 3, "max_iter": 3, "line_search_fn": "strong_wolfe"},
}
#: Takes sparse gradients only.
SPARSE = ("SparseAdam",)
#: Takes matrices only.
MATRICES = ("Muon",)


def classes() -> Dict[str, type]:
    """Name -> class of each public optimizer in ``torch.optim``."""
    kinds = {name: kind for name, kind in vars(torch.optim).items() if inspect.isclass(kind)}
    return {
        name: kind
        for name, kind in kinds.items()
        if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }


def cases() -> List[Tuple[str, Dict[str, Any]]]:
    """Each name with its settings, and once more for each implementation ("foreach", "fused") that it has."""
    every = []
    for name, kind in classes().items():
        settings = SETTINGS.get(name, {})
        every.append((name, settings))
        options = inspect.signature(kind).parameters
        every += [(name, {**settings, option: True}) for option in ("foreach", "fused") if option in options]
    return every
