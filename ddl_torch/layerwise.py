"""What LARS and LAMB share: a step that scales each parameter's update by the norm of its weights.

One parameter tensor counts as one layer, as in the papers' own code. Parameters of one dimension (biases, scales and
shifts of normalisation) are usually left out, from weight decay too; ``layerwise_groups`` sorts them.
"""

from __future__ import annotations

import abc
import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

import ddl

__all__ = ["LayerwiseOptimizer", "layerwise_groups", "norm"]


def _has_one_dimension(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() <= 1


def layerwise_groups(
    named_parameters: Iterable[Tuple[str, torch.Tensor]],
    exclude: Callable[[str, torch.Tensor], bool] = _has_one_dimension,
) -> List[Dict[str, Any]]:
    """Return parameter groups for ``LARS`` or ``LAMB``: those adapted layer by layer, and those excluded.

    ``exclude(name, parameter)``: whether to leave a parameter out; default: those with at most one dimension, that is
    biases and normalisation. Excluded ones form a group with ``adapt=False`` and ``weight_decay=0``.

    >>> optimizer = ddl_torch.LARS(ddl_torch.layerwise_groups(model.named_parameters()), lr=0.1)
    """
    adapted: List[torch.Tensor] = []
    excluded: List[torch.Tensor] = []
    for name, parameter in named_parameters:
        (excluded if exclude(name, parameter) else adapted).append(parameter)
    groups: List[Dict[str, Any]] = [{"params": adapted}]
    groups.append({"params": excluded, "adapt": False, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def norm(tensor: torch.Tensor) -> float:
    """Return the Euclidean norm, in float32 where the elements have fewer bits."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return float(torch.linalg.vector_norm(tensor, dtype=dtype))


class LayerwiseOptimizer(torch.optim.Optimizer, abc.ABC):
    """An optimizer whose groups have a flag ``adapt``: whether updates are scaled by the weights' norm."""

    def __init__(self, params: Any, defaults: Dict[str, Any]) -> None:
        name = type(self).__name__
        for option in ("lr", "weight_decay", "eps"):
            if not 0 <= defaults[option] < math.inf:
                raise ddl.InvalidArgument(f"{name}: {option}={defaults[option]!r} must be a number from 0 on")
        super().__init__(params, {**defaults, "adapt": True})

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:  # type: ignore[override]
        """Update every parameter that has a gradient; return what ``closure``, which computes them anew, returns.

        Raises ``InvalidArgument``, with nothing changed, for a sparse gradient or a complex parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        due = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for _, parameter in due:
            self._check(parameter)
        for group, parameter in due:
            self._update(group, parameter, parameter.grad)
        return loss

    def _check(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        where = f"{type(self).__name__}: the parameter of shape {tuple(parameter.shape)}"
        if parameter.grad.layout != torch.strided:
            raise ddl.InvalidArgument(f"{where} has a sparse gradient; make it dense (sparse=False for an Embedding)")
        if parameter.is_complex():
            raise ddl.InvalidArgument(f"{where} is complex; pass torch.view_as_real of it as the parameter")

    @abc.abstractmethod
    def _update(self, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Apply one step to ``parameter``; must not write to ``gradient``."""
