"""torch's own tests of its distributed package, with "ddl" wherever they say gloo: test_torchs_own.py runs them.

Their processes are forked from one that has imported all of torch: as they are, each test starts three that import it
anew, which takes most of half an hour. RANK, WORLD_SIZE, … are torch's affair: it sets them itself.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, Optional

os.environ.update({"BACKEND": "gloo", "WORLD_SIZE": "3", "INIT_METHOD": "env://", "TEMP_DIR": tempfile.gettempdir()})

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import distributed_test as own

import ddl_torch

assert ddl_torch.__all__  # its import makes the backend known


def _ours(backend: Optional[str]) -> Optional[str]:
    return None if backend is None else str(backend).replace("gloo", "ddl")


_init, _new, _get = dist.init_process_group, dist.new_group, dist.get_backend


def _init_process_group(backend: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
    _init(_ours(backend), *args, **kwargs)


def _new_group(ranks: Any = None, timeout: Any = None, backend: Optional[str] = None, *args: Any, **kwargs: Any) -> Any:
    return _new(ranks, timeout, _ours(backend), *args, **kwargs)


def _get_backend(*args: Any, **kwargs: Any) -> str:
    return str(_get(*args, **kwargs)).replace("ddl", "gloo")


for module in (dist, dist.distributed_c10d):
    module.init_process_group, module.new_group, module.get_backend = _init_process_group, _new_group, _get_backend
own.PROFILING_SUPPORTED_BACKENDS = []  # torch's profiler has the events of its dispatcher, as for any other backend


class TestOwn(own.TestDistBackend, own.DistributedTest._DistTestBase):
    """All of them."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
