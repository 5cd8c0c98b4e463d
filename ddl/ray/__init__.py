"""DDL in Ray: ``RayExecutor`` runs functions in actors, by the names of ``horovod.ray``.

``ddl.ray.elastic`` has ranks that come and go; ``ddl.ray.train`` is for Ray Train, ``ddl.ray.collective`` for
``ray.util.collective``: docs/ray.md.
"""

from __future__ import annotations

from ddl.ray.executor import RayExecutor
from ddl.ray.placement import RaySettings

__all__ = ["RayExecutor", "RaySettings"]
