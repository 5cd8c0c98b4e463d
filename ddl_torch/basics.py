"""Start and end of a job, and Horovod's questions about the installation, with the process sets of this adapter."""

from __future__ import annotations

from ddl.adapter.horovod import (
    Basics,
    ccl_built,
    check_extension,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    gpu_available,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from ddl_torch._process_set import process_sets

__all__ = ["add_process_set", "init", "process_set_by_id", "remove_process_set", "shutdown"]
__all__ += ["check_extension", "gpu_available", "is_homogeneous", "start_timeline", "stop_timeline"]
__all__ += ["ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled"]
__all__ += ["mpi_threads_supported", "nccl_built", "rocm_built"]

_basics = Basics(process_sets)
init, shutdown = _basics.init, _basics.shutdown
add_process_set, remove_process_set = _basics.add_process_set, _basics.remove_process_set
process_set_by_id = _basics.process_set_by_id
