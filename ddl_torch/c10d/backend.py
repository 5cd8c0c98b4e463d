"""Makes DDL a backend of ``torch.distributed``: ``import ddl_torch; dist.init_process_group("ddl")``.

Torch 2.15 and later find ``register`` by the entry point in pyproject.toml, without an import.

torch calls ``_create`` for each new group, on its ranks. What kind of group that is: process_group.py, and for
``enable_reconfigure=True`` reconfigurable.py.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend
from torch.distributed.rendezvous import register_rendezvous_handler

from ddl import InvalidState
from ddl_torch._compat import timeout_given
from ddl_torch._streams import GPU_TYPES
from ddl_torch.c10d.lifetime import keep_what_reducers_hold
from ddl_torch.c10d.monitored_barrier import extend_torch
from ddl_torch.c10d.process_group import DDLProcessGroup
from ddl_torch.c10d.reconfigurable import ReconfigurableProcessGroup
from ddl_torch.c10d.rendezvous import by_launcher, communicator_for

__all__ = ["register", "use_as_default"]


def register() -> None:
    """Make "ddl" known to ``torch.distributed``. Done by ``import ddl_torch``; again does nothing."""
    if "DDL" not in Backend._plugins:
        Backend.register_backend("ddl", _create, extended_api=True, devices=["cpu", *sorted(GPU_TYPES)])
        register_rendezvous_handler("ddl", by_launcher)  # type: ignore[no-untyped-call]
        extend_torch(DDLProcessGroup)
        keep_what_reducers_hold()


def use_as_default() -> None:
    """Let ``torch.distributed`` choose "ddl" on CPUs where a script names no backend.

    So does what asks torch for its default, as Lightning does. What names gloo itself still gets gloo. Call it before
    the process group is made; again does nothing, and there is no way back. On a machine with GPUs, torch still chooses
    by the GPU. Raises ``InvalidState`` if there is a process group already whose tensors on CPUs go elsewhere.

    >>> ddl_torch.use_as_default()
    >>> torch.distributed.init_process_group()
    """
    if dist.is_initialized() and "cpu:ddl" not in dist.get_backend_config().split(","):
        raise InvalidState(
            f"use_as_default: the process group is there already, with the backends {dist.get_backend_config()}, so "
            "another default would not change it; call use_as_default before init_process_group, or "
            "destroy_process_group first"
        )
    Backend.default_device_backend_map["cpu"] = "ddl"


def _create(options: Any, _: Any) -> DDLProcessGroup:
    """Called by ``dist.init_process_group`` and ``new_group``, on the ranks of the group."""
    members, store, seconds = list(options.global_ranks_in_group), options.store, timeout_given(options.timeout)
    if getattr(options, "enable_reconfigure", False):
        return ReconfigurableProcessGroup(store, options.group_rank, options.group_size, seconds)
    default = dist.group.WORLD if members else None
    if isinstance(default, ReconfigurableProcessGroup):  # its ranks need not be those of DDL's job
        part = default.communicator.subset(members, timeout=seconds)
        return DDLProcessGroup(part, part.close, seconds)
    communicator, leave = communicator_for(store, options.group_rank, options.group_size, members, seconds)
    return DDLProcessGroup(communicator, leave, seconds)
