"""``LinearScalingWarmup``: the linear scaling rule for large batches, with a gradual warm-up.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (arXiv:1706.02677), section 2.
"""

from __future__ import annotations

from typing import Optional

import torch

import ddl

__all__ = ["LinearScalingWarmup"]


class LinearScalingWarmup(torch.optim.lr_scheduler.LinearLR):
    """Raise each group's learning rate linearly from its ``lr`` to ``factor * lr`` over ``warmup_steps``.

    After that it leaves the rate alone. Not collective.

    optimizer: distributed or not yet; each group's ``lr`` is what one rank alone would use.
    warmup_steps: calls of ``step()`` until the full rate, 1 or more: batches if it is called after each batch (as in
        the paper), epochs if after each epoch.
    factor: 1 or more; default ``ddl_torch.size()``, so ``ddl_torch.init()`` comes first. Multiply it by
        ``backward_passes_per_step`` if that is not 1 and the loss is divided by it.

    It multiplies the groups' ``lr`` when it is made, so schedulers that are made later take the full rate for theirs,
    and torch's own classes compose it with them: ``SequentialLR`` starts the next schedule when the warm-up has ended,
    ``ChainedScheduler`` lets both run from the first step (as the paper does). To resume, make all schedulers, then
    load the states of optimizer and scheduler; they keep the factor they were saved with, on any number of ranks.

    Raises ``InvalidArgument`` if the optimizer has had a scheduler before, or state that was saved with one.

    >>> warmup = ddl_torch.LinearScalingWarmup(optimizer, 5 * len(loader))
    >>> cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 85 * len(loader))
    >>> scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [5 * len(loader)])
    """

    def __init__(self, optimizer: torch.optim.Optimizer, warmup_steps: int, *, factor: Optional[float] = None) -> None:
        factor = ddl.size() if factor is None else factor
        if not 1 <= factor < float("inf"):
            raise ddl.InvalidArgument(f"LinearScalingWarmup: factor={factor!r} must be a number from 1 on")
        if not isinstance(warmup_steps, int) or warmup_steps < 1:
            raise ddl.InvalidArgument(
                f"LinearScalingWarmup: warmup_steps={warmup_steps!r} is not a number of steps from 1 on"
            )
        if any("initial_lr" in group for group in optimizer.param_groups):
            raise ddl.InvalidArgument(
                "LinearScalingWarmup: the optimizer has had a scheduler already, which does not know the full rate. "
                "Make LinearScalingWarmup before other schedulers, and load a checkpoint after all are made"
            )
        for group in optimizer.param_groups:
            group["lr"] *= factor
        super().__init__(optimizer, start_factor=1 / factor, total_iters=warmup_steps)
