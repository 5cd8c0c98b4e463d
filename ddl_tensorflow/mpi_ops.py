"""Horovod's module of this name: what scripts import from ``horovod.tensorflow.mpi_ops`` is here. No MPI is used."""

from __future__ import annotations

from ddl import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    cross_rank,
    cross_size,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)
from ddl.adapter.process_sets import ProcessSet
from ddl_tensorflow._public import public_names
from ddl_tensorflow._where import global_process_set
from ddl_tensorflow.basics import (
    add_process_set,
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    remove_process_set,
    rocm_built,
    shutdown,
    start_timeline,
    stop_timeline,
)
from ddl_tensorflow.graph_values import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from ddl_tensorflow.grouped import grouped_allgather, grouped_allreduce, grouped_reducescatter
from ddl_tensorflow.helpers import check_num_rank_power_of_2, gpu_available, handle_average_backwards_compatibility
from ddl_tensorflow.joining import join
from ddl_tensorflow.variables import broadcast_
from ddl_tensorflow.verbs import allgather, allreduce, alltoall, barrier, broadcast, reducescatter

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "Sum", "init", "is_initialized", "shutdown"]
__all__ += ["cross_rank", "cross_size", "local_rank", "local_size", "rank", "size", "is_homogeneous"]
__all__ += ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
__all__ += ["ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "gpu_available", "mpi_built"]
__all__ += ["mpi_enabled", "mpi_threads_supported", "nccl_built", "rocm_built", "start_timeline", "stop_timeline"]
__all__ += ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]
__all__ += ["allgather", "allreduce", "alltoall", "barrier", "broadcast", "broadcast_", "join", "reducescatter"]
__all__ += ["grouped_allgather", "grouped_allreduce", "grouped_reducescatter"]
__all__ += ["check_num_rank_power_of_2", "handle_average_backwards_compatibility"]

__dir__ = public_names(globals())
