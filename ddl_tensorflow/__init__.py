"""DDL for TensorFlow and Keras 3: averages gradients over the ranks of a job; three changed lines of a script.

>>> import ddl_tensorflow as ddl
>>> ddl.init()
>>> optimizer = ddl.DistributedOptimizer(keras.optimizers.Adam(1e-3))
"""

from __future__ import annotations

import importlib
from typing import Any

try:
    import tensorflow  # noqa: F401 (first of all, to say what is missing)
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "ddl_tensorflow needs TensorFlow (2.16 or later): pip install tensorflow-cpu; for PyTorch there is ddl_torch",
        name="tensorflow",
    ) from None

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
from ddl.spelling import no_attribute
from ddl_tensorflow import data, elastic
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
    process_set_by_id,
    remove_process_set,
    rocm_built,
    shutdown,
    start_timeline,
    stop_timeline,
)
from ddl_tensorflow.compression import Compression
from ddl_tensorflow.graph_values import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from ddl_tensorflow.grouped import grouped_allgather, grouped_allreduce, grouped_reducescatter
from ddl_tensorflow.helpers import (
    check_extension,
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    refs_to_vars,
    split_list,
    vars_to_refs,
)
from ddl_tensorflow.joining import join
from ddl_tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ddl_tensorflow.optimizer import DistributedAdasumOptimizer, DistributedOptimizer
from ddl_tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
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
__all__ += ["data", "elastic", "join"]
__all__ += ["local_rank_op", "local_size_op", "process_set_included_op", "rank_op", "size_op"]
__all__ += ["check_extension", "check_num_rank_power_of_2", "gpu_available", "handle_average_backwards_compatibility"]
__all__ += ["refs_to_vars", "split_list", "vars_to_refs"]
__all__ += ["DistributedAdasumOptimizer", "DistributedGradientTape", "DistributedOptimizer"]
__all__ += ["PartialDistributedGradientTape"]
__all__ += ["start_timeline", "stop_timeline"]
__all__ += ["mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled", "nccl_built"]
__all__ += ["is_homogeneous", "ddl_built", "ccl_built", "cuda_built", "rocm_built"]
__all__ += ["SyncBatchNormalization"]


#: Horovod's modules that only repeat names of this one: loaded when a script asks for them.
_MODULES = ("functions", "mpi_ops")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name != "SyncBatchNormalization":
        raise no_attribute(__name__, name, __all__)
    from ddl_tensorflow.sync_batch_norm import SyncBatchNormalization  # a layer: imports Keras, which takes a second

    return SyncBatchNormalization


__dir__ = public_names(globals())
