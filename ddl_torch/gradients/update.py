"""``overlap_update``: parameters are updated bucket by bucket, as averages come in, while others are on their way.

On a slow network the update would otherwise come after the last average, when nothing else is under way. PyTorch's
optimizers skip parameters without a gradient. So a part of a step is a step in which only these parameters have one.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import torch

import ddl
from ddl_torch.gradients.entry import Entry
from ddl_torch.layerwise import LayerwiseOptimizer

__all__ = ["PartialUpdates", "check_optimizer"]


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise ``InvalidArgument`` unless ``optimizer`` is known to treat each parameter for itself."""
    kind = type(optimizer)
    known = isinstance(optimizer, LayerwiseOptimizer) or f"{kind.__module__}.".startswith("torch.optim.")
    if not known or isinstance(optimizer, torch.optim.LBFGS):
        raise ddl.InvalidArgument(
            f"overlap_update=True is for the optimizers of torch.optim but LBFGS, and for LARS and LAMB: "
            f"{kind.__name__} may decide about a parameter by the gradients of others; leave overlap_update away"
        )


class PartialUpdates:
    """The parts of a step that have been done; the step itself does the rest and must not see their gradients."""

    def __init__(self) -> None:
        self._hidden: List[Tuple[torch.Tensor, torch.Tensor]] = []  # parameters that are updated, and their gradients

    def update(self, optimizer: torch.optim.Optimizer, entries: Sequence[Entry]) -> None:
        """Take a step for the parameters of ``entries`` only, and hide their gradients."""
        now = {entry.parameter for entry in entries}
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        later = [(p, p.grad) for p in parameters if p not in now]
        for parameter, _ in later:
            parameter.grad = None
        # PyTorch has wrapped ``step`` to call hooks: those of users are to be called once for the whole step.
        type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
        for parameter in parameters:
            if parameter in now:
                assert parameter.grad is not None
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None
        for parameter, gradient in later:
            parameter.grad = gradient

    def begun(self) -> bool:
        """Return whether a part of the step has been done."""
        return bool(self._hidden)

    def show(self) -> None:
        """Give the gradients back."""
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden.clear()
