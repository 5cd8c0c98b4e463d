"""Horovod's module of this name: what scripts import from ``horovod.torch.functions`` is here."""

from __future__ import annotations

from ddl_torch.objects import allgather_object, broadcast_object
from ddl_torch.state import broadcast_optimizer_state, broadcast_parameters

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]
