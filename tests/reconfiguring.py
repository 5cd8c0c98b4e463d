"""Process groups that are made with ``enable_reconfigure=True``, for functions that run as ranks (ranks.py)."""

from __future__ import annotations

import datetime
import os
from typing import Any, List, Optional, Sequence, Union

import pytest

SIZE = 3  # of the first group in all tests
SUM = 6.0  # of 1, 2 and 3


def skip_below() -> Any:
    """Return the mark of tests that need what torch 2.14 has."""
    dist = pytest.importorskip("torch.distributed")
    return pytest.mark.skipif(
        not hasattr(dist, "_reconfigure"),
        reason="torch reconfigures process groups from 2.14 on; 'make test-torch-newest' runs this with such a torch",
    )


class Member:
    """This rank of ``SIZE``, and its default group, which has no ranks yet. ``path``: of torch's store, a file."""

    def __init__(self, path: str, **options: Any) -> None:
        import torch.distributed as dist

        import ddl_torch

        assert ddl_torch.__all__  # its import makes the backend known
        self.first_rank = int(os.environ["DDL_RANK"])
        self.store = dist.FileStore(path, SIZE)
        options = {"timeout": datetime.timedelta(seconds=100), **options}
        numbers = {"rank": self.first_rank, "world_size": SIZE}
        dist.init_process_group("ddl", store=self.store, **numbers, enable_reconfigure=True, **options)
        self.dist = dist
        self.group: Any = dist.group.WORLD
        self._swaps = 0

    def handles(self) -> List[str]:
        """Return those of all ``SIZE`` processes, by their first rank. All of them call this."""
        self._swaps += 1
        self.store.set(f"test/{self._swaps}/{self.first_rank}", self.dist._get_reconfigure_handle())
        return [str(self.store.get(f"test/{self._swaps}/{rank}"), "utf-8") for rank in range(SIZE)]

    def go_to(self, uuid: int, handles: Union[Sequence[str], set], seconds: float = 100) -> None:
        """Reconfigure the group."""
        self.dist._reconfigure(uuid, handles, timeout=datetime.timedelta(seconds=seconds)).wait()

    def numbers(self) -> List[int]:
        """Return this process's rank of now, and how many there are."""
        return [self.dist.get_rank(), self.dist.get_world_size()]

    def total(self) -> float:
        """Return the sum of (rank + 1) over the ranks of now, computed by all of them."""
        import torch

        x = torch.full((4,), self.dist.get_rank() + 1.0)
        self.dist.all_reduce(x)
        assert (x == x[0]).all()
        return float(x[0])

    def fails(self, kind: Any, match: Optional[str] = None) -> str:
        """Assert that an operation raises ``kind``, and does not wait for its deadline instead; return the text."""
        import ddl

        with pytest.raises(kind, match=match) as caught:
            self.total()
        assert kind is ddl.CollectiveTimeout or not isinstance(caught.value, ddl.CollectiveTimeout)
        return str(caught.value)

    def meet(self, first_ranks: Sequence[int]) -> None:
        """Return when all of these have called it: as ``ranks.meet``, but without those that have died. Used once."""
        self.store.set(f"test/met/{self.first_rank}", "")
        for rank in first_ranks:
            self.store.get(f"test/met/{rank}")  # waits for it
