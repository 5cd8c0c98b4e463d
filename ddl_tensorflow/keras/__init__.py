"""DDL for Keras 3, with the names of ``horovod.tensorflow.keras`` and ``horovod.keras``; a script changes its import.

>>> import ddl_tensorflow.keras as ddl
>>> ddl.init()
>>> model.compile(ddl.DistributedOptimizer(keras.optimizers.Adam(1e-3 * ddl.size())), loss)
>>> model.fit(x, y, callbacks=[ddl.callbacks.BroadcastGlobalVariablesCallback(0)])

These lines also replace ``MultiWorkerMirroredStrategy`` and its scope.

With the backends torch and JAX the callbacks and ``elastic`` work, and ``callbacks.WeightAverageCallback`` trains in
place of ``DistributedOptimizer``; what needs TensorFlow as the backend raises ``ConfigError`` and says what to use
instead. TensorFlow has to be installed in any case, as this is a part of ``ddl_tensorflow``. (For loops of one's own
on torch there is the adapter ``ddl_torch``.)
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import tensorflow as tf

import ddl_tensorflow as _ddl
from ddl import ReduceOp
from ddl.adapter.metrics import average_metrics
from ddl.adapter.operations import choose_op
from ddl.reduce_op import OpLike
from ddl_tensorflow import (
    Adasum,
    Average,
    Compression,
    Error,
    HorovodInternalError,
    InvalidArgument,
    InvalidState,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    __version__,
    add_process_set,
    ccl_built,
    check_extension,
    cross_rank,
    cross_size,
    cuda_built,
    data,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    gpu_available,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from ddl_tensorflow._keras_backend import need_tensorflow
from ddl_tensorflow._public import public_names
from ddl_tensorflow.keras import callbacks, elastic
from ddl_tensorflow.keras._optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "load_model", "callbacks", "data", "elastic"]
__all__ += ["allgather", "allreduce", "broadcast", "broadcast_global_variables", "reducescatter", "average_metrics"]
__all__ += ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "Compression", "__version__"]
__all__ += ["Error", "HorovodInternalError", "InvalidArgument", "InvalidState"]
__all__ += ["init", "shutdown", "is_initialized", "start_timeline", "stop_timeline"]
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["ProcessSet", "global_process_set", "add_process_set", "remove_process_set"]
__all__ += ["mpi_built", "mpi_enabled", "mpi_threads_supported", "gloo_built", "gloo_enabled", "nccl_built"]
__all__ += ["ddl_built", "ccl_built", "cuda_built", "rocm_built"]
__all__ += ["check_extension", "gpu_available", "is_homogeneous"]


def _value(result: Any) -> Any:
    """Return what a session of TF1, if one is open, makes of a tensor of its graph; else the tensor."""
    session = None if tf.executing_eagerly() or tf.inside_function() else tf.compat.v1.get_default_session()
    return result if session is None else session.run(result)


def allreduce(
    value: Any,
    name: Optional[str] = None,
    average: Optional[bool] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Optional[OpLike] = None,
    compression: Any = Compression.none,
) -> Any:
    """Return ``ddl_tensorflow.allreduce`` of ``value``: a tensor, or anything that is made one.

    It and the next three return tensors; while a session of TF1 is open, its arrays. Collective. Raises what those of
    ``ddl_tensorflow`` do, and ``ConfigError`` where Keras does not run on TensorFlow.

    >>> mean = ddl.allreduce(loss)
    """
    need_tensorflow("allreduce")
    op = choose_op(average, op, stacklevel=3)
    scales: Dict[str, float] = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return _value(_ddl.allreduce(value, op=op, name=name, compression=compression, **scales))


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """Return ``ddl_tensorflow.allgather`` of ``value``; the rest is as for ``allreduce``."""
    need_tensorflow("allgather")
    return _value(_ddl.allgather(value, name=name))


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """Return ``ddl_tensorflow.broadcast`` of ``value``; the rest is as for ``allreduce``."""
    need_tensorflow("broadcast")
    return _value(_ddl.broadcast(value, root_rank, name=name))


def reducescatter(value: Any, name: Optional[str] = None, op: OpLike = Average) -> Any:
    """Return ``ddl_tensorflow.reducescatter`` of ``value``; the rest is as for ``allreduce``."""
    need_tensorflow("reducescatter")
    return _value(_ddl.reducescatter(value, op=op, name=name))


def broadcast_global_variables(root_rank: int) -> Any:
    """Give all ranks the global variables of a graph of TF1; with a session open, it is done when this returns.

    Raises what ``ddl_tensorflow.broadcast_global_variables`` does: eagerly there is no such collection.
    """
    need_tensorflow("broadcast_global_variables")
    return _value(_ddl.broadcast_global_variables(root_rank))


__dir__ = public_names(globals())
