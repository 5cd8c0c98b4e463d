"""What an adapter needs to make calls of the core itself, where no verb of a ``Communicator`` fits its arrays."""

from __future__ import annotations

from ddl._comm import object_codec, size_exchange
from ddl._comm.arrays import as_array, memory
from ddl._comm.core_calls import Call, check_splits
from ddl.plan.ir import Collective

__all__ = ["Call", "Collective", "as_array", "check_splits", "memory", "object_codec", "size_exchange"]
