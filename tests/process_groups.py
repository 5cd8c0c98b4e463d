"""``torch.distributed`` on the backend "ddl" for functions that run as ranks (ranks.py)."""

from __future__ import annotations

import os
from typing import Any, Tuple


def begin(path: str, **options: Any) -> Tuple[Any, int, int]:
    """Make the default group by a new file at ``path``; return ``torch.distributed``, the rank, and the size."""
    import torch.distributed as dist

    import ddl_torch

    rank, size = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
    assert dist.Backend.backend_list.count("ddl") == 1 and ddl_torch.__all__  # by its import
    dist.init_process_group("ddl", store=dist.FileStore(path, size), rank=rank, world_size=size, **options)
    return dist, rank, size
