"""``step(closure)`` with averaging: gradients do not exist before the closure is called, perhaps several times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

import torch

from ddl_torch._tensors import alias

if TYPE_CHECKING:
    from ddl_torch._reducer import GradientReducer

__all__ = ["average_before_step"]


def average_before_step(
    reducer: GradientReducer, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Optional[Tuple[Any, Any]]:
    """Average the gradients now, or, if ``step`` was given a closure, after each call of it.

    Takes the arguments of ``step`` and returns the ones that it is to have instead, None: the same.
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        if not reducer.synchronized:
            reducer.synchronize()
        return None
    if isinstance(closure, _AveragingClosure):
        return None  # a step that calls its base class's step comes here twice
    averaging = _AveragingClosure(reducer, closure)
    if "closure" in kwargs:
        return args, {**kwargs, "closure": averaging}
    return (args[0], averaging, *args[2:]), kwargs


class _AveragingClosure:
    """A closure of ``step`` that averages the gradients it has computed, and its loss."""

    def __init__(self, reducer: GradientReducer, closure: Callable[[], Any]) -> None:
        self._reducer = reducer
        self._closure = closure

    def __call__(self) -> Any:
        loss = self._closure()
        if not self._reducer.synchronized:
            self._reducer.synchronize()
        if not isinstance(loss, (torch.Tensor, float)):
            return loss
        mean = torch.as_tensor(loss, dtype=None if isinstance(loss, torch.Tensor) else torch.float64).detach().clone()
        self._reducer.communicator.allreduce_(alias(mean, "step(closure)"), op=self._reducer.op)
        return mean if isinstance(loss, torch.Tensor) else mean.item()
