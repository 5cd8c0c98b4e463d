"""``LARS``: momentum SGD with a learning rate of its own for each layer.

You, Gitman and Ginsburg, "Large Batch Training of Convolutional Networks", 2017 (arXiv:1708.03888), algorithm 1.
"""

from __future__ import annotations

from typing import Any, Dict

import torch

import ddl
from ddl_torch.layerwise import LayerwiseOptimizer, norm

__all__ = ["LARS"]


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling, for SGD with very large batches. Not collective; wrap it to distribute it.

    For weights w with gradient g, in a group with the options below::

        local = trust_coefficient * |w| / (|g| + weight_decay * |w| + eps)
        v     = momentum * v + lr * local * (g + weight_decay * w)
        w     = w - v

    The rate is inside v, as in the paper (torch.optim.SGD has it outside). ``local`` is 1 where |w| or |g| is 0.

    params: parameters, or groups, which may have options of their own; with ``"adapt": False`` a group's ``local`` is 1
        (``layerwise_groups`` makes such a group of biases and normalisation).
    lr: from 0 on. momentum: 0 to below 1. weight_decay, eps: from 0 on. trust_coefficient: above 0.
    nesterov: subtract ``lr * local * (g + weight_decay * w) + momentum * v`` instead of v.

    Raises ``InvalidArgument`` for other values; ``step`` says what else.

    >>> optimizer = ddl_torch.LARS(ddl_torch.layerwise_groups(model.named_parameters()), lr=0.1, weight_decay=1e-4)
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
        nesterov: bool = False,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ddl.InvalidArgument(f"LARS: momentum={momentum!r} is not from 0 to below 1")
        if not 0 < trust_coefficient < float("inf"):
            raise ddl.InvalidArgument(f"LARS: trust_coefficient={trust_coefficient!r} must be a number above 0")
        if nesterov and not momentum:
            raise ddl.InvalidArgument("LARS: nesterov=True needs a momentum above 0")
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        options.update(trust_coefficient=trust_coefficient, eps=eps, nesterov=nesterov)
        super().__init__(params, options)

    def _update(self, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        decay, momentum = group["weight_decay"], group["momentum"]
        rate = float(group["lr"])
        if group["adapt"]:
            rate *= _local_rate(norm(parameter), norm(gradient), group)
        decayed = gradient.add(parameter, alpha=decay) if decay else gradient
        if not momentum:
            parameter.sub_(decayed, alpha=rate)
            return
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"].mul_(momentum).add_(decayed, alpha=rate)
        if group["nesterov"]:
            parameter.sub_(decayed, alpha=rate).sub_(velocity, alpha=momentum)
        else:
            parameter.sub_(velocity)


def _local_rate(weight_norm: float, gradient_norm: float, group: Dict[str, Any]) -> float:
    if weight_norm == 0 or gradient_norm == 0:
        return 1.0  # new weights that are zero could never grow
    decayed_norm: float = gradient_norm + group["weight_decay"] * weight_norm + group["eps"]
    coefficient: float = group["trust_coefficient"]
    return coefficient * weight_norm / decayed_norm
