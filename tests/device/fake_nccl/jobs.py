"""What ranks of a job (tests/ranks.py) share where they use the fake NCCL without DDL: an id, and a GPU each."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

from device.fake_cuda import Fake
from device.fake_nccl.nccl import Nccl, environment

_ids = itertools.count()


def rank_and_size() -> Tuple[int, int]:
    """Return which rank this is, and of how many."""
    return int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])


def shared_id(nccl: Nccl) -> bytes:
    """Return a new id that rank 0 has made; all ranks call this as often."""
    file = Path(os.environ["RANKS_FOLDER"]) / f"nccl_id.{next(_ids)}"
    if rank_and_size()[0] == 0:
        draft = file.with_suffix(".new")
        draft.write_bytes(nccl.unique_id())
        draft.rename(file)
    deadline = time.monotonic() + 100
    while not file.exists():
        assert time.monotonic() < deadline, "rank 0 made no id"
        time.sleep(0.002)
    return file.read_bytes()


def communicator_of_all(nccl: Nccl, **config: int) -> int:
    """Return a new communicator of all ranks, ready for its first operation."""
    rank, size = rank_and_size()
    communicator = nccl.init(shared_id(nccl), size, rank, nccl.config(**config))
    assert nccl.settle(communicator) == 0
    return communicator


def each_its_gpu(fake: Dict[str, Any], **options: Any) -> Callable[[int], Dict[str, str]]:
    """Return ``env_of`` for ``ranks.run``: a fake driver for each rank, whose device is a GPU that no other rank has.

    ``fake`` is for ``Fake.environment``, ``options`` for ``environment`` here.
    """

    def env_of(rank: int) -> Dict[str, str]:
        count = fake.get("devices", 1)
        devices = [count * rank + device for device in range(count)]
        return {**Fake.environment(**fake, physical=devices), **environment(**options)}

    return env_of
