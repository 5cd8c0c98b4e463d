"""The libraries that are compared, behind the few things that the timing loop needs of one.

Each is imported when it is asked for. A file of your own can be a contestant too: it defines ``library()``, which
returns a ``Library``; ddlrun starts it, so DDL_RANK and DDL_SIZE say who a process is.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Tuple

import numpy as np

from .values import CollectiveCall

__all__ = ["Library", "Slot", "layout_of", "load"]


@dataclass
class Slot:
    """One set of buffers, and the call that uses them."""

    source: np.ndarray  # the bits that this rank puts in
    run: Callable[[], Any]  # makes the call; only this is timed
    result: Callable[[Any], np.ndarray]  # what ``run`` returned -> the bits that came out
    root: int


class Library:
    """What the timing loop needs of a library: who am I, buffers with their call, a barrier, the end."""

    rank: int
    size: int
    version: str
    layout: Mapping[str, Any] = {}  # DDL's own: what its choice of plans follows from

    def slot(self, work: CollectiveCall, root: int) -> Slot:
        """Return new buffers for ``work`` and the call that uses them. Collective, the same on all ranks."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Wait for all ranks, with the library's own means."""
        raise NotImplementedError

    def finish(self) -> None:
        """Leave the job."""
        raise NotImplementedError


def _storage(dtype: str) -> Any:
    return np.float32 if dtype == "float32" else np.uint16


def layout_of(world: Any) -> Dict[str, Any]:
    """Return what the plans of DDL's world communicator follow from, so that others can build them again."""
    job = world._group.job
    return {"hosts": job.hosts, "dimensions": job.settings.dimensions, "algorithm": job.settings.algorithm}


class Ddl(Library):
    """DDL as numpy users call it. ``memory``: "shared" (``ddl.empty``) or "private" (``np.empty``)."""

    def __init__(self, memory: str = "shared", prepared: bool = False) -> None:
        import ddl

        ddl.init()
        self.ddl: Any = ddl
        self.rank, self.size = ddl.rank(), ddl.size()
        self.version = ddl.__version__
        self.layout = layout_of(ddl.world())
        self.prepared = prepared
        self.empty = ddl.empty if memory == "shared" else np.empty

    def _make(self, count: int, dtype: str) -> Tuple[Any, np.ndarray]:
        bits: np.ndarray = self.empty(count, _storage(dtype))
        if dtype == "bfloat16":
            import torch  # its tensors tell DDL, through DLPack, that these bits are bfloat16

            return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16), bits
        return (bits.view(np.float16) if dtype == "float16" else bits), bits

    def slot(self, work: CollectiveCall, root: int) -> Slot:
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
            return Slot(bits, ddl.world().prepare_allreduce(x, op=total), lambda _: bits, root)
        if work.collective in in_place:
            return Slot(bits, in_place[work.collective], lambda _: bits, root)
        return Slot(bits, into[work.collective], lambda _: target, root)

    def barrier(self) -> None:
        self.ddl.barrier()

    def finish(self) -> None:
        self.ddl.shutdown()


class DdlComputing(Ddl):
    """DDL's all-reduce in the background, while this rank's core multiplies matrices."""

    def slot(self, work: CollectiveCall, root: int) -> Slot:
        x, bits = self._make(work.input_count, work.dtype)
        matrix = np.full((256, 256), 1 / 256, np.float32)
        ddl = self.ddl

        def run() -> None:
            started = ddl.world().allreduce_async_(x, op=ddl.Sum)
            while not started.done():
                matrix @ matrix
            started.wait()

        return Slot(bits, run, lambda _: bits, root)


class Mpi(Library):
    """Open MPI or MPICH through mpi4py's buffer calls; which of them, the environment decides."""

    def __init__(self) -> None:
        import mpi4py
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.world: Any = MPI.COMM_WORLD
        self.rank, self.size = self.world.rank, self.world.size
        first = MPI.Get_library_version().splitlines()[0].rstrip("\0").split(",")[0]
        self.version = f"{' '.join(first.split())}, mpi4py {mpi4py.__version__}"

    def slot(self, work: CollectiveCall, root: int) -> Slot:
        source = np.empty(work.input_count, _storage(work.dtype))
        world, in_place = self.world, self.mpi.IN_PLACE
        if work.collective == "allreduce":
            return Slot(source, lambda: world.Allreduce(in_place, source), lambda _: source, root)
        if work.collective == "broadcast":
            return Slot(source, lambda: world.Bcast(source, root), lambda _: source, root)
        target = np.empty(work.output_count, source.dtype)
        verbs = {"reducescatter": "Reduce_scatter_block", "allgather": "Allgather", "alltoall": "Alltoall"}
        verb = getattr(world, verbs[work.collective])
        return Slot(source, lambda: verb(source, target), lambda _: target, root)

    def barrier(self) -> None:
        self.world.Barrier()

    def finish(self) -> None:
        self.world.Barrier()  # mpi4py finalises at exit


class Gloo(Library):
    """gloo through torch.distributed; MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME say where."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.torch: Any = torch
        self.dist: Any = dist
        self.rank, self.size = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
        self.version = f"torch {torch.__version__}"
        dist.init_process_group("gloo", rank=self.rank, world_size=self.size)

    def _make(self, count: int, dtype: str) -> Tuple[Any, np.ndarray]:
        tensor = self.torch.empty(count, dtype=getattr(self.torch, dtype))
        bits = tensor if dtype == "float32" else tensor.view(self.torch.int16)
        return tensor, bits.numpy().view(_storage(dtype))

    def slot(self, work: CollectiveCall, root: int) -> Slot:
        dist = self.dist
        x, bits = self._make(work.input_count, work.dtype)
        if work.collective == "allreduce":
            return Slot(bits, lambda: dist.all_reduce(x), lambda _: bits, root)
        if work.collective == "broadcast":
            return Slot(bits, lambda: dist.broadcast(x, root), lambda _: bits, root)
        y, target = self._make(work.output_count, work.dtype)
        # From torch 2.13 on these two have new names, and the old ones warn in every call.
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        verbs = {"reducescatter": scatter, "allgather": gather, "alltoall": dist.all_to_all_single}
        verb = verbs[work.collective]
        return Slot(bits, lambda: verb(y, x), lambda _: target, root)

    def barrier(self) -> None:
        self.dist.barrier()

    def finish(self) -> None:
        self.dist.destroy_process_group()


def load(name: str) -> Library:
    """Return the library of that name, or the one that a Python file makes; joins its job."""
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        library: Library = module.library()
        return library
    if name == "mpi":
        return Mpi()
    if name == "ddl-computing":
        return DdlComputing()
    if name == "gloo":
        warnings.simplefilter("ignore")  # of torch's own start, printed by every rank
        return Gloo()
    kinds = {"ddl": ("shared", False), "ddl-private": ("private", False), "ddl-prepared": ("shared", True)}
    return Ddl(*kinds[name])
