"""Verbs that autograd can go back through: their backward is a verb, too."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Tuple

import torch

__all__ = ["differentiable"]

Tensors = Sequence[torch.Tensor]


class _Verb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: Callable[[Tensors], Tensors], back: Callable[[Tensors], Tensors], *tensors: torch.Tensor
    ) -> Tuple[torch.Tensor, ...]:
        ctx.back = back
        return tuple(run(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (None, None, *ctx.back(gradients))


def differentiable(run: Callable[[Tensors], Tensors], back: Callable[[Tensors], Tensors], tensors: Tensors) -> Tensors:
    """Return ``run(tensors)``; their gradients are ``back`` of the results' gradients, where autograd wants any."""
    # What is no tensor is refused by ``run``.
    if not torch.is_grad_enabled() or not any(getattr(tensor, "requires_grad", False) for tensor in tensors):
        return run(tensors)
    results: Tuple[torch.Tensor, ...] = _Verb.apply(run, back, *tensors)  # type: ignore[no-untyped-call]
    return results
