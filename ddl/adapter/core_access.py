"""What an adapter needs to make calls of the core itself, where no verb of a ``Communicator`` fits its arrays."""

from __future__ import annotations

from ddl._comm import object_codec, size_exchange
from ddl._comm.arrays import as_array, memory
from ddl._comm.core_calls import Call, check_splits
from ddl._comm.gpu_arrays import GpuArray, GpuMemory
from ddl.plan.ir import Collective

__all__ = ["Call", "Collective", "GpuArray", "GpuMemory", "as_array", "check_splits", "memory", "object_codec"]
__all__ += ["size_exchange"]
