"""The libraries that are compared, as the timing loop wants them (ddl/tools/bench/library.py).

Each is imported when it is asked for. A file of your own can be a contestant, too: it defines ``library()``, which
returns a ``Library``. ddlrun starts it, so DDL_RANK and DDL_SIZE say which rank a process is.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np

from ddl.tools.bench.library import BufferSet, Ddl, Library, storage
from ddl.tools.bench.values import CollectiveCall

__all__ = ["layout_of", "load"]


def layout_of() -> Dict[str, Any]:
    """Return what the plans of this rank's world communicator follow from, so that others can build them again."""
    import ddl

    job = ddl.world().job
    return {"hosts": job.hosts, "dimensions": job.settings.dimensions, "algorithm": job.settings.algorithm}


class DdlComputing(Ddl):
    """DDL's all-reduce in the background, while this rank's core multiplies matrices."""

    def slot(self, work: CollectiveCall, root: int) -> BufferSet:
        x, bits = self._make(work.input_count, work.dtype)
        matrix = np.full((256, 256), 1 / 256, np.float32)
        ddl = self.ddl

        def run() -> None:
            started = ddl.world().allreduce_async_(x, op=ddl.Sum)
            while not started.done():
                matrix @ matrix
            started.wait()

        return BufferSet(bits, run, lambda _: bits, root)


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

    def slot(self, work: CollectiveCall, root: int) -> BufferSet:
        source = np.empty(work.input_count, storage(work.dtype))
        world, in_place = self.world, self.mpi.IN_PLACE
        if work.collective == "allreduce":
            return BufferSet(source, lambda: world.Allreduce(in_place, source), lambda _: source, root)
        if work.collective == "broadcast":
            return BufferSet(source, lambda: world.Bcast(source, root), lambda _: source, root)
        target = np.empty(work.output_count, source.dtype)
        verbs = {"reducescatter": "Reduce_scatter_block", "allgather": "Allgather", "alltoall": "Alltoall"}
        verb = getattr(world, verbs[work.collective])
        return BufferSet(source, lambda: verb(source, target), lambda _: target, root)

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
        return tensor, bits.numpy().view(storage(dtype))

    def slot(self, work: CollectiveCall, root: int) -> BufferSet:
        dist = self.dist
        x, bits = self._make(work.input_count, work.dtype)
        if work.collective == "allreduce":
            return BufferSet(bits, lambda: dist.all_reduce(x), lambda _: bits, root)
        if work.collective == "broadcast":
            return BufferSet(bits, lambda: dist.broadcast(x, root), lambda _: bits, root)
        y, target = self._make(work.output_count, work.dtype)
        # From torch 2.13 on these two have new names, and the old ones warn in every call.
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        verbs = {"reducescatter": scatter, "allgather": gather, "alltoall": dist.all_to_all_single}
        verb = verbs[work.collective]
        return BufferSet(bits, lambda: verb(y, x), lambda _: target, root)

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
