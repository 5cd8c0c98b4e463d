"""DDL for PyTorch: averages gradients over the ranks of a job; three changed lines of a script.

>>> import ddl_torch as ddl
>>> ddl.init()
>>> ddl.broadcast_parameters(model.state_dict())
>>> optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters())

Everything here works in a job of size 1 without a launcher, too. Importing makes the backend "ddl" known to
``torch.distributed``, warns if this torch is newer than what was tested, and does nothing else:

>>> torch.distributed.init_process_group("ddl")
"""

from __future__ import annotations

import importlib
from typing import Any, List

import torch.distributed

from ddl import (
    Adasum,
    Average,
    Communicator,
    Error,
    InvalidArgument,
    InvalidState,
    Max,
    Metrics,
    Min,
    Product,
    RankFailed,
    ReduceOp,
    Sum,
    __version__,
    abort,
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    rank,
    run,
    size,
    split,
    world,
)
from ddl.adapter.elastic import HorovodInternalError, HostsUpdatedInterrupt
from ddl.adapter.malloc_settings import tune_allocator
from ddl.adapter.metrics import MetricAverage, average_metrics
from ddl.adapter.process_sets import ProcessSet
from ddl_torch import _compat, elastic
from ddl_torch._process_set import global_process_set
from ddl_torch._tensors import Work
from ddl_torch.adasum import adasum_
from ddl_torch.basics import (
    add_process_set,
    ccl_built,
    check_extension,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    init,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    process_set_by_id,
    remove_process_set,
    rocm_built,
    shutdown,
    start_timeline,
    stop_timeline,
)
from ddl_torch.compression import Compression, PowerSGD
from ddl_torch.grouped import (
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from ddl_torch.handles import poll, synchronize
from ddl_torch.joining import join
from ddl_torch.lamb import LAMB
from ddl_torch.lars import LARS
from ddl_torch.layerwise import layerwise_groups
from ddl_torch.objects import allgather_object, broadcast_object
from ddl_torch.optimizer import DistributedOptimizer
from ddl_torch.ordered import (
    gather,
    gather_async,
    prepare_allreduce,
    recv,
    recv_async,
    reduce,
    reduce_async,
    scatter,
    scatter_async,
    send,
    send_async,
)
from ddl_torch.rate_logger import RateLogger
from ddl_torch.sampler import ShardedSampler
from ddl_torch.sparse import sparse_allreduce_async
from ddl_torch.state import broadcast_optimizer_state, broadcast_parameters
from ddl_torch.sync_batch_norm import SyncBatchNorm
from ddl_torch.verbs import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    barrier_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    reducescatter,
    reducescatter_async,
)
from ddl_torch.warmup import LinearScalingWarmup

_compat.warn_if_newer()
if torch.distributed.is_available():
    from ddl_torch.c10d.backend import register, use_as_default
    from ddl_torch.c10d.ddp_hook import ddp_hook
    from ddl_torch.c10d.process_group import DDLProcessGroup

    register()
    __all__ = ["DDLProcessGroup", "ddp_hook", "use_as_default"]
else:
    __all__ = []
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"]
__all__ += ["Communicator", "Metrics", "Work", "__version__"]
__all__ += ["Error", "InvalidArgument", "InvalidState", "RankFailed"]
__all__ += ["HorovodInternalError", "HostsUpdatedInterrupt", "elastic"]
__all__ += ["init", "shutdown", "is_initialized", "world", "abort", "split", "metrics", "run"]
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters", "tune_allocator"]
__all__ += ["LARS", "LAMB", "LinearScalingWarmup", "MetricAverage", "ShardedSampler", "SyncBatchNorm"]
__all__ += ["PowerSGD", "RateLogger"]
__all__ += ["average_metrics", "layerwise_groups"]
__all__ += ["adasum_", "sparse_allreduce_async"]
__all__ += ["broadcast_object", "allgather_object"]
__all__ += ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "prepare_allreduce"]
__all__ += ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"]
__all__ += ["reduce", "reduce_async", "gather", "gather_async", "scatter", "scatter_async"]
__all__ += ["barrier", "barrier_async", "send", "send_async", "recv", "recv_async"]
__all__ += ["start_timeline", "stop_timeline", "poll", "synchronize", "join"]
__all__ += ["grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async"]
__all__ += ["grouped_allreduce_async_", "grouped_allgather", "grouped_allgather_async"]
__all__ += ["grouped_reducescatter", "grouped_reducescatter_async", "Compression"]
__all__ += ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set", "process_set_by_id"]
__all__ += [
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "gloo_built",
    "gloo_enabled",
    "nccl_built",
    "ddl_built",
]
__all__ += ["ccl_built", "cuda_built", "rocm_built"]
__all__ += ["check_extension", "gpu_available", "is_homogeneous"]

#: Horovod's modules that only repeat names of this one: loaded when a script asks for them.
_MODULES = ("functions", "mpi_ops")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    from ddl.text.spelling import no_attribute

    raise no_attribute(__name__, name, __all__)


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
