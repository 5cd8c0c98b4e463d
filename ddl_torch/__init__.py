"""DDL for PyTorch: averages gradients over the ranks of a job; three changed lines of a script.

>>> import ddl_torch as ddl
>>> ddl.init()
>>> ddl.broadcast_parameters(model.state_dict())
>>> optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters())

Everything here works in a job of size 1 without a launcher, too. Importing makes the backend "ddl" known to
``torch.distributed``, and does nothing else:

>>> torch.distributed.init_process_group("ddl")
"""

from __future__ import annotations

import torch.distributed

from ddl import (
    Average,
    Communicator,
    Error,
    InvalidArgument,
    InvalidState,
    Max,
    Metrics,
    Min,
    Product,
    ReduceOp,
    Sum,
    __version__,
    abort,
    allgather_object,
    broadcast_object,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    metrics,
    rank,
    shutdown,
    size,
    split,
    world,
)
from ddl_torch._allocator import tune_allocator
from ddl_torch._tensors import Work
from ddl_torch.averaging import MetricAverage, average_metrics
from ddl_torch.compression import Compression, PowerSGD
from ddl_torch.lamb import LAMB
from ddl_torch.lars import LARS
from ddl_torch.layerwise import layerwise_groups
from ddl_torch.optimizer import DistributedOptimizer
from ddl_torch.sampler import ShardedSampler
from ddl_torch.state import broadcast_optimizer_state, broadcast_parameters
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
    gather,
    gather_async,
    prepare_allreduce,
    recv,
    recv_async,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
    scatter,
    scatter_async,
    send,
    send_async,
)
from ddl_torch.warmup import LinearScalingWarmup

if torch.distributed.is_available():
    from ddl_torch.ddp_hook import ddp_hook
    from ddl_torch.process_group import DDLProcessGroup, register

    register()
    __all__ = ["DDLProcessGroup", "ddp_hook"]
else:
    __all__ = []
__all__ += ["Average", "Max", "Min", "Product", "ReduceOp", "Sum", "Communicator", "Metrics", "Work", "__version__"]
__all__ += ["Error", "InvalidArgument", "InvalidState"]
__all__ += ["init", "shutdown", "is_initialized", "world", "abort", "split", "metrics"]
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["DistributedOptimizer", "broadcast_optimizer_state", "broadcast_parameters", "tune_allocator"]
__all__ += ["LARS", "LAMB", "LinearScalingWarmup", "MetricAverage", "ShardedSampler", "Compression", "PowerSGD"]
__all__ += ["average_metrics", "layerwise_groups"]
__all__ += ["broadcast_object", "allgather_object"]
__all__ += ["allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "prepare_allreduce"]
__all__ += ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]
__all__ += ["reducescatter", "reducescatter_async", "allgather", "allgather_async", "alltoall", "alltoall_async"]
__all__ += ["reduce", "reduce_async", "gather", "gather_async", "scatter", "scatter_async"]
__all__ += ["barrier", "barrier_async", "send", "send_async", "recv", "recv_async"]
