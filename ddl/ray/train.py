"""``DDLConfig``: DDL as a backend of Ray Train. Each worker of a ``DataParallelTrainer`` is a rank.

The job's store is in Train's controller, which outlives the workers. Each time that Train starts its workers, also in
place of lost ones, it makes a new one. How a worker joins: the controller calls ``_learn`` in its process, and the
training function runs in the context that ``DDLConfig.train_func_context`` makes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from typing import Any, Dict, Iterator, Optional, Type

import ray
from ray.train.backend import Backend, BackendConfig

import ddl
from ddl.adapter.joining import as_rank
from ddl.errors import InvalidState

__all__ = ["DDLConfig"]

_log = logging.getLogger("ddl")
_rendezvous: Optional[ddl.Rendezvous] = None  # of this worker


@dataclasses.dataclass
class DDLConfig(BackendConfig):
    """Give this as ``backend_config`` to a ``DataParallelTrainer`` of Ray Train.

    The training function runs between ``ddl.init()`` and ``ddl.shutdown()``; it need not call them, but may. If a
    worker is lost, the others raise an error that names it, and so does the controller's log. ``environ``: variables
    for all workers, such as {"DDL_TIMEOUT": "60"}.

    >>> trainer = DataParallelTrainer(train, backend_config=DDLConfig(), scaling_config=ScalingConfig(num_workers=2))
    """

    environ: Dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def backend_cls(self) -> Type[Backend]:
        return _DDLBackend

    @property
    def train_func_context(self) -> Any:
        return _as_rank_of_train

    def to_dict(self) -> Dict[str, Any]:
        return {"environ": sorted(self.environ)}


class _DDLBackend(Backend):
    """Used by one controller, in its process."""

    share_cuda_visible_devices = True  # so that ``ddl.local_rank()`` is a device

    def __init__(self) -> None:
        self._store: Optional[ddl.JobStore] = None

    def on_start(self, worker_group: Any, backend_config: DDLConfig) -> None:
        self._close()
        size = len(worker_group)
        self._store = ddl.JobStore(size)
        nodes = worker_group.execute(_node)
        told = []
        for rank in range(size):
            rendezvous = ddl.Rendezvous(rank, size, self._store.invitation, nodes, "Ray Train")
            told.append(worker_group.execute_single_async(rank, _learn, rendezvous, backend_config.environ))
        ray.get(told)

    def on_shutdown(self, worker_group: Any, backend_config: DDLConfig) -> None:
        if self._store is not None and self._store.failure is not None:
            _log.error("%s", self._store.failure)
        self._close()

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _learn(rendezvous: ddl.Rendezvous, environ: Dict[str, str]) -> None:
    global _rendezvous
    _rendezvous = rendezvous
    os.environ.update(environ)


@contextlib.contextmanager
def _as_rank_of_train() -> Iterator[None]:
    if _rendezvous is None:
        raise InvalidState("this process is no worker of Ray Train: the backend of DDL has not been started here")
    with as_rank(_rendezvous):
        yield
