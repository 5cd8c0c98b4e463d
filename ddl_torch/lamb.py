"""``LAMB``: Adam with decoupled weight decay and a learning rate of its own for each layer.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2019 (arXiv:1904.00962),
algorithm 2.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Tuple

import torch

import ddl
from ddl_torch.layerwise import LayerwiseOptimizer, norm

__all__ = ["LAMB"]


class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive Adam, for very large batches. Not collective; wrap it to distribute it.

    For weights w with gradient g in step t, in a group with the options below::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        u = (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + weight_decay * w
        w = w - lr * (phi(|w|) / |u|) * u

    The trust ratio, phi(|w|) / |u|, is 1 where one of these norms is 0.

    params: parameters, or groups, which may have options of their own; with ``"adapt": False`` a group's trust
        ratio is 1 (``layerwise_groups`` makes such a group of biases and normalisation).
    lr, weight_decay, eps: from 0 on. betas: each from 0 to below 1.
    bias_correction: False leaves out the divisions by ``1 - beta**t``.
    weight_norm_bounds: (low, high), between which phi clamps the norm; (0, 10) in the first version of the paper. None:
        phi changes nothing.
    max_trust_ratio: the trust ratio is at most this. None: no limit.

    Raises ``InvalidArgument`` for other values; ``step`` says what else.

    >>> optimizer = ddl_torch.LAMB(ddl_torch.layerwise_groups(model.named_parameters()), lr=2e-3)
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        weight_norm_bounds: Optional[Tuple[float, float]] = None,
        max_trust_ratio: Optional[float] = None,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ddl.InvalidArgument(f"LAMB: betas={betas!r} are not both from 0 to below 1")
        if weight_norm_bounds is not None and not 0 <= weight_norm_bounds[0] < weight_norm_bounds[1]:
            raise ddl.InvalidArgument(f"LAMB: weight_norm_bounds={weight_norm_bounds!r} must be (low, high), from 0 on")
        if max_trust_ratio is not None and not max_trust_ratio > 0:
            raise ddl.InvalidArgument(f"LAMB: max_trust_ratio={max_trust_ratio!r} must be above 0, or None")
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        options.update(bias_correction=bias_correction)
        options.update(weight_norm_bounds=weight_norm_bounds, max_trust_ratio=max_trust_ratio)
        super().__init__(params, options)

    def _update(self, group: Dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        (beta1, beta2), correct = group["betas"], group["bias_correction"]
        mean = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        deviation = square.div(1 - beta2 ** state["step"]).sqrt_() if correct else square.sqrt()
        update = mean.div(1 - beta1 ** state["step"]) if correct else mean.clone()
        update.div_(deviation.add_(group["eps"])).add_(parameter, alpha=group["weight_decay"])
        rate = float(group["lr"])
        if group["adapt"]:
            rate *= _trust_ratio(norm(parameter), norm(update), group)
        parameter.sub_(update, alpha=rate)


def _trust_ratio(weight_norm: float, update_norm: float, group: Dict[str, Any]) -> float:
    low, high = group["weight_norm_bounds"] or (0.0, math.inf)
    clamped = min(max(weight_norm, low), high)
    if clamped == 0 or update_norm == 0:
        return 1.0  # new weights that are zero could never grow
    limit = group["max_trust_ratio"]
    return clamped / update_norm if limit is None else min(clamped / update_norm, limit)
