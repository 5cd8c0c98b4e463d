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

from ddl import Error, InvalidArgument, InvalidState, ReduceOp, __version__, run
from ddl.adapter.elastic import HorovodInternalError, HostsUpdatedInterrupt
from ddl.text.spelling import no_attribute
from ddl_tensorflow import data, elastic, mpi_ops
from ddl_tensorflow._public import public_names
from ddl_tensorflow.basics import process_set_by_id
from ddl_tensorflow.compression import Compression
from ddl_tensorflow.helpers import check_extension, refs_to_vars, split_list, vars_to_refs
from ddl_tensorflow.mpi_ops import *
from ddl_tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from ddl_tensorflow.optimizer import DistributedAdasumOptimizer, DistributedOptimizer
from ddl_tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from ddl_tensorflow.variables import BroadcastGlobalVariablesHook, broadcast_global_variables, broadcast_variables

__all__ = ["ReduceOp", "__version__", "run"]
__all__ += mpi_ops.__all__
__all__ += ["Error", "HorovodInternalError", "HostsUpdatedInterrupt", "InvalidArgument", "InvalidState"]
__all__ += ["Compression", "data", "elastic", "process_set_by_id"]
__all__ += ["allgather_object", "broadcast_object", "broadcast_object_fn"]
__all__ += ["BroadcastGlobalVariablesHook", "broadcast_global_variables", "broadcast_variables"]
__all__ += ["check_extension", "refs_to_vars", "split_list", "vars_to_refs"]
__all__ += ["DistributedAdasumOptimizer", "DistributedGradientTape", "DistributedOptimizer"]
__all__ += ["PartialDistributedGradientTape", "SyncBatchNormalization"]


def __getattr__(name: str) -> Any:
    if name == "functions":  # Horovod's module, which only repeats names of this one: loaded when a script asks for it
        return importlib.import_module(f"{__name__}.{name}")
    if name != "SyncBatchNormalization":
        raise no_attribute(__name__, name, __all__)
    from ddl_tensorflow.sync_batch_norm import SyncBatchNormalization  # a layer: imports Keras, which takes a second

    return SyncBatchNormalization


__dir__ = public_names(globals())
