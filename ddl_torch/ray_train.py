"""``TorchConfig``: torch's backend "ddl" in the ``TorchTrainer`` of Ray Train.

From PyTorch 2.15 on, Ray's own ``TorchConfig(backend="ddl")`` does: torch finds the backend by its name. Before, each
worker has to import ``ddl_torch`` before Ray makes its process group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Type

from ray.train import torch as ray_torch
from ray.train.backend import Backend

__all__ = ["TorchConfig"]

_RayBackend: Any = ray_torch.TorchConfig().backend_cls


@dataclass
class TorchConfig(ray_torch.TorchConfig):
    """Ray Train's ``TorchConfig`` with DDL as the backend of ``torch.distributed``; see there.

    >>> trainer = TorchTrainer(train, torch_config=TorchConfig(), scaling_config=ScalingConfig(num_workers=2))
    """

    backend: Optional[str] = "ddl"

    @property
    def backend_cls(self) -> Type[Backend]:
        return _Backend


class _Backend(_RayBackend):
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(_know_ddl)
        super().on_start(worker_group, backend_config)


def _know_ddl() -> None:
    """A worker that calls this has imported this module, so ``ddl_torch``, by which torch knows its backend."""
