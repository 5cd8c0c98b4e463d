"""Every public name of ``horovod.tensorflow.keras`` and ``horovod.keras`` is there, with its arguments, and tested."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("keras")

HERE = Path(__file__).parent

FIT, CALLBACKS = "test_keras_fit.py", "test_keras_callbacks.py"

#: Where each name is tested.
NAMES = {
    "init": CALLBACKS,
    "shutdown": CALLBACKS,
    "is_initialized": CALLBACKS,
    **dict.fromkeys(("rank", "size", "local_rank", "local_size", "cross_rank"), CALLBACKS),
    "allreduce": CALLBACKS,
    "allgather": CALLBACKS,
    "broadcast": CALLBACKS,
    "reducescatter": CALLBACKS,
    "broadcast_global_variables": CALLBACKS,
    "Average": CALLBACKS,
    "Sum": CALLBACKS,
    "load_model": FIT,
    "DistributedOptimizer": FIT,
    "PartialDistributedOptimizer": FIT,
    "average_metrics": FIT,
    "callbacks.BroadcastGlobalVariablesCallback": FIT,
    "callbacks.MetricAverageCallback": FIT,
    "callbacks.BestModelCheckpoint": FIT,
    "callbacks.LearningRateScheduleCallback": CALLBACKS,
    "callbacks.LearningRateWarmupCallback": CALLBACKS,
    "callbacks.WeightAverageCallback": CALLBACKS,
    "callbacks.RatesCallback": "test_rates.py",
    "elastic.KerasState": CALLBACKS,
    "elastic.run": CALLBACKS,
    "elastic.CommitStateCallback": CALLBACKS,
    "elastic.UpdateBatchStateCallback": CALLBACKS,
    "elastic.UpdateEpochStateCallback": CALLBACKS,
}

#: The same object as in ddl_tensorflow, whose tests these are.
SHARED = "Compression ProcessSet global_process_set add_process_set remove_process_set start_timeline stop_timeline "
SHARED += "cross_size mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built "
SHARED += "ccl_built cuda_built rocm_built Adasum Min Max Product ReduceOp __version__ "
SHARED += "Error HorovodInternalError InvalidArgument InvalidState data check_extension gpu_available is_homogeneous"

_OPTIMIZER = "optimizer name device_dense device_sparse compression sparse_as_dense gradient_predivide_factor op "
_OPTIMIZER += "backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
_OPTIMIZER += "scale_local_gradients"
#: Horovod's, in its order; ours may have more after them.
ARGUMENTS = {
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "broadcast_global_variables": "root_rank",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
    "DistributedOptimizer": _OPTIMIZER,
    "PartialDistributedOptimizer": f"{_OPTIMIZER} local_layers",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device local_variables",
    "callbacks.MetricAverageCallback": "device",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase "
    "momentum_correction steps_per_epoch",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction steps_per_epoch verbose",
    "callbacks.BestModelCheckpoint": "monitor verbose save_weights_only mode save_freq",
    "elastic.CommitStateCallback": "state batches_per_commit",
    "elastic.UpdateBatchStateCallback": "state",
    "elastic.UpdateEpochStateCallback": "state",
}


def find(name):
    import ddl_tensorflow.keras as ddl

    attribute = ddl
    for part in name.split("."):
        attribute = getattr(attribute, part)
    return attribute


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_there_and_tested(name):
    find(name)
    calls = rf"ddl\.{re.escape(name)}\b"
    assert re.search(calls, (HERE / NAMES[name]).read_text(encoding="utf-8")), f"{NAMES[name]} does not use {name}"


def test_nothing_else_is_public():
    import ddl_tensorflow
    import ddl_tensorflow.keras as ddl

    shared = SHARED.split()
    assert sorted(ddl.__all__) == sorted({*(name.split(".")[0] for name in NAMES), *shared})
    for name in shared:
        assert getattr(ddl, name) is getattr(ddl_tensorflow, name)
    for module in (ddl.callbacks, ddl.elastic):
        own = {name for name in module.__all__ if getattr(module, name).__module__.startswith("ddl_tensorflow.keras")}
        assert own and own <= {name.split(".")[1] for name in NAMES if "." in name}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_those_of_horovod(name):
    parameters = [
        parameter.name
        for parameter in inspect.signature(find(name)).parameters.values()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    ]
    wanted = ARGUMENTS[name].split()
    assert parameters[: len(wanted)] == wanted
