"""``ScaledLR``: the learning rate follows the global batch where ranks come and go, in small steps."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

import ddl
from ddl_torch.elastic.batches import ElasticBatches

__all__ = ["ScaledLR"]


class ScaledLR(torch.optim.lr_scheduler.LRScheduler):
    """Scale learning rates with the number of ranks that ``batches`` deals to (arXiv 1706.02677, section 2.1).

    With ``Training``, each rank brings a batch of its own, so the global batch changes with the ranks. The learning
    rates that ``optimizer`` has now are for the ranks that there are now. After a change they go to those of the new
    number within ``ramp`` steps, in equal parts.

    Call ``step()`` after each step of the optimizer. Other schedules may go along with it if they change a learning
    rate by a factor (``ExponentialLR``, ``StepLR``), but not if they set it (``LambdaLR``, ``OneCycleLR``). Not
    collective: all ranks do the same.

    Raises ``InvalidArgument`` for ``batches`` with shards, whose global batch never changes, and for ``ramp`` below 1.

    >>> scaled = ddl_torch.elastic.ScaledLR(optimizer, batches)
    >>> training = ddl_torch.elastic.Training(model, optimizer, batches, scaled=scaled)
    >>> for x, y in training.steps(loader):
    ...     ...
    ...     optimizer.step()
    ...     scaled.step()
    """

    def __init__(self, optimizer: torch.optim.Optimizer, batches: ElasticBatches, ramp: int = 100) -> None:
        if batches.shards is not None:
            raise ddl.InvalidArgument(
                f"ScaledLR: a step of these batches has {batches.shards} shards on any number of ranks, so the "
                "learning rate stays as it is; leave ScaledLR out"
            )
        if ramp < 1:
            raise ddl.InvalidArgument(f"ScaledLR: ramp={ramp} steps must be 1 or more")
        self._batches = batches
        self.ramp = ramp
        self.ranks = float(batches.size)  #: for which the learning rates are that the optimizer has
        self._wanted, self._part = self.ranks, 0.0
        super().__init__(optimizer)

    def get_lr(self) -> List[Any]:
        """Return the learning rates of the next step. Called by ``step()``."""
        before, wanted = self.ranks, float(self._batches.size)
        if wanted != self._wanted:
            self._wanted, self._part = wanted, (wanted - before) / self.ramp
        self.ranks = wanted if abs(wanted - before) <= 1.001 * abs(self._part) else before + self._part
        return [group["lr"] * (self.ranks / before) for group in self.optimizer.param_groups]

    def state_dict(self) -> Dict[str, Any]:
        """Return plain data, as all schedules do."""
        return {name: value for name, value in super().state_dict().items() if name != "_batches"}
