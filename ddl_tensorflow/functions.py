"""Horovod's module of this name: what scripts import from ``horovod.tensorflow.functions`` is here."""

from __future__ import annotations

from ddl_tensorflow._public import public_names
from ddl_tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ddl_tensorflow.variables import broadcast_variables

__all__ = ["allgather_object", "broadcast_object", "broadcast_object_fn", "broadcast_variables"]

__dir__ = public_names(globals())
