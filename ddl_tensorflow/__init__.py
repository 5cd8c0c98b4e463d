"""DDL for TensorFlow and Keras 3: averages gradients over the ranks of a job; three changed lines of a script.

>>> import ddl_tensorflow as ddl
>>> ddl.init()
>>> optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(1e-3))
"""

from __future__ import annotations

from ddl import (
    Adasum,
    Average,
    Error,
    InvalidArgument,
    InvalidState,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    __version__,
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    run,
    size,
)
from ddl.elastic import HorovodInternalError, HostsUpdatedInterrupt
from ddl.process_sets import ProcessSet
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.basics import (
    add_process_set,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
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
from ddl_tensorflow.compression import Compression
from ddl_tensorflow.grouped import grouped_allgather, grouped_allreduce, grouped_reducescatter
from ddl_tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ddl_tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)
from ddl_tensorflow.verbs import allgather, allreduce, alltoall, barrier, broadcast, reducescatter

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "__version__"]
__all__ += ["Error", "HorovodInternalError", "HostsUpdatedInterrupt", "InvalidArgument", "InvalidState"]
__all__ += ["init", "shutdown", "is_initialized", "run"]
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set", "process_set_by_id"]
__all__ += ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "reducescatter", "Compression"]
__all__ += ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter"]
__all__ += ["allgather_object", "broadcast_object", "broadcast_object_fn"]
__all__ += ["BroadcastGlobalVariablesHook", "broadcast_", "broadcast_global_variables", "broadcast_variables"]
__all__ += ["start_timeline", "stop_timeline"]
__all__ += ["mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled", "nccl_built"]
__all__ += ["ddl_built", "ccl_built", "cuda_built", "rocm_built"]
