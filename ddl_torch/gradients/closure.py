"""``step(closure)`` with averaging: gradients do not exist before the closure is called, perhaps several times."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Protocol, Tuple

import torch

from ddl_torch.gradients.announcement import Presence

__all__ = ["Averages", "average_before_step"]


class Averages(Protocol):
    """Who averages an optimizer's gradients: see ``GradientReducer``."""

    synchronized: bool
    presence: Presence

    def synchronize(self, updated: Optional[torch.optim.Optimizer] = None) -> None:
        """Let every ``p.grad`` be the average."""

    def updated_early(self, optimizer: torch.optim.Optimizer) -> Optional[torch.optim.Optimizer]:
        """Return ``optimizer`` if it takes its step bucket by bucket."""

    def average_loss(self, loss: float) -> float:
        """Return the average of the ranks' losses."""


def average_before_step(reducer: Averages, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[Tuple[Any, Any]]:
    """Average the gradients now, or, if ``step`` was given a closure, after each call of it.

    Takes the arguments of ``step`` and returns the ones that it is to have instead, None: the same.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        if not reducer.synchronized:
            reducer.synchronize(reducer.updated_early(args[0]))
        return None
    if isinstance(closure, _AveragingClosure):
        return None  # a step that calls its base class's step comes here twice
    averaging = _AveragingClosure(reducer, closure)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": averaging}
    return (args[0], averaging, *args[2:]), kwargs


class _AveragingClosure:
    """A closure of ``step`` that averages the gradients it has computed, and its loss if that is one number."""

    def __init__(self, reducer: Averages, closure: Callable[[], Any]) -> None:
        self._reducer = reducer
        self._closure = closure

    def __call__(self) -> Any:
        reducer = self._reducer
        reducer.presence = Presence.EVALUATING
        try:
            loss = self._closure()
            if not reducer.synchronized:
                reducer.synchronize()
        finally:
            reducer.presence = Presence.TRAINING
        # Ranks that have joined know that there is a loss, but not of which type: it travels as float64, always.
        a_tensor = isinstance(loss, torch.Tensor) and loss.numel() == 1 and loss.is_floating_point()
        number = loss.item() if a_tensor else loss if isinstance(loss, float) else None
        mean = reducer.average_loss(number or 0.0)
        if number is None:
            return loss
        return torch.full_like(loss, mean, requires_grad=False) if a_tensor else mean
