"""Horovod's names for a tf.data service that it starts on ranks of a job of its own: not a part of DDL.

They say so when they are called. tf.data's own service needs nothing of DDL: start
``tf.data.experimental.service.DispatchServer`` and ``WorkerServer`` where there are processors to spare, and give each
rank's dataset ``tf.data.experimental.service.distribute``.
"""

from __future__ import annotations

from typing import Any, NoReturn

import ddl
from ddl_tensorflow._public import public_names

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]


def _refuse(name: str) -> NoReturn:
    raise ddl.InvalidState(
        f"{name}: DDL starts no tf.data service; start tf.data.experimental.service.DispatchServer and WorkerServer "
        "yourself, and apply tf.data.experimental.service.distribute(…, address) on each rank; to split a data set "
        "over the ranks: ddl_tensorflow.data.shard"
    )


class TfDataServiceConfig:
    """Raises ``InvalidState``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("TfDataServiceConfig")


def tf_data_service(compute_config: Any, rank: int) -> NoReturn:
    """Raise ``InvalidState``."""
    _refuse("tf_data_service")


def send_to_data_service(dataset: Any, compute_config: Any, rank: int, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise ``InvalidState``."""
    _refuse("send_to_data_service")


def compute_worker_fn(compute_config: Any) -> NoReturn:
    """Raise ``InvalidState``."""
    _refuse("compute_worker_fn")


__dir__ = public_names(globals())
