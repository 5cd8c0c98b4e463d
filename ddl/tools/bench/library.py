"""What the timing loop needs of a library, and DDL as such a library."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Callable, Tuple

import numpy as np

from ddl.tools.bench.values import CollectiveCall

__all__ = ["Ddl", "Library", "BufferSet", "storage"]


@dataclass
class BufferSet:
    """One set of buffers, and the call that uses them."""

    source: np.ndarray  # the bits that this rank puts in
    run: Callable[[], Any]  # makes the call; only this is timed
    result: Callable[[Any], np.ndarray]  # what ``run`` returned -> the bits that came out
    root: int


class Library(abc.ABC):
    """What the timing loop needs of a library: rank and size, buffers with their call, a barrier, the end."""

    rank: int
    size: int
    version: str

    @abc.abstractmethod
    def slot(self, work: CollectiveCall, root: int) -> BufferSet:
        """Return new buffers for ``work`` and the call that uses them. Collective, the same on all ranks."""

    @abc.abstractmethod
    def barrier(self) -> None:
        """Wait for all ranks, with the library's own means."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Leave the job."""


def storage(dtype: str) -> Any:
    """Return the numpy type of the bits of an element type: numpy has no bfloat16."""
    return np.float32 if dtype == "float32" else np.uint16


class Ddl(Library):
    """DDL as numpy users call it. ``memory``: "shared" (``ddl.empty``) or "private" (``np.empty``)."""

    def __init__(self, memory: str = "shared", prepared: bool = False) -> None:
        import ddl

        ddl.init()
        self.ddl: Any = ddl
        self.rank, self.size = ddl.rank(), ddl.size()
        self.version = ddl.__version__
        self.prepared = prepared
        self.empty = ddl.empty if memory == "shared" else np.empty

    def _make(self, count: int, dtype: str) -> Tuple[Any, np.ndarray]:
        bits: np.ndarray = self.empty(count, storage(dtype))
        if dtype == "bfloat16":
            import torch  # its tensors tell DDL, through DLPack, that these bits are bfloat16

            return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), bits
        return (bits.view(np.float16) if dtype == "float16" else bits), bits

    def slot(self, work: CollectiveCall, root: int) -> BufferSet:
        moves_only = work.collective in ("allgather", "alltoall")  # into numpy arrays, which have no bfloat16
        x, bits = self._make(work.input_count, "float16" if moves_only and work.dtype == "bfloat16" else work.dtype)
        ddl, total = self.ddl, self.ddl.Sum
        allreduce_, broadcast_, reducescatter = ddl.allreduce_, ddl.broadcast_, ddl.reducescatter
        allgather, alltoall = ddl.allgather, ddl.alltoall
        in_place = {
            "allreduce": lambda: allreduce_(x, op=total),
            "broadcast": lambda: broadcast_(x, root=root),
        }
        y, target = self._make(work.output_count, str(x.dtype).replace("torch.", ""))
        into = {
            "reducescatter": lambda: reducescatter(x, op=total, out=y),
            "allgather": lambda: allgather(x, out=y),
            "alltoall": lambda: alltoall(x, out=y),
        }
        if self.prepared:
            return BufferSet(bits, ddl.world().prepare_allreduce(x, op=total), lambda _: bits, root)
        if work.collective in in_place:
            return BufferSet(bits, in_place[work.collective], lambda _: bits, root)
        return BufferSet(bits, into[work.collective], lambda _: target, root)

    def barrier(self) -> None:
        self.ddl.barrier()

    def finish(self) -> None:
        self.ddl.shutdown()
