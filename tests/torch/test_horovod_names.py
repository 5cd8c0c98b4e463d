"""Every public name of ``horovod.torch`` 0.28 is in ``ddl_torch``, and takes the same parameters in the same order.

They are written out here, so no Horovod is needed. What DDL adds to a function can only be passed by keyword.
"""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ddl_torch as hvd  # noqa: E402 (it needs torch, which may not be there)

_SCALES = "prescale_factor=1.0 postscale_factor=1.0"
_SET = "process_set=all"
_ALLREDUCE = f"average=None name=None op=None {_SCALES} {_SET}"
_BLOCKING_ALLREDUCE = f"average=None name=None compression=none op=None {_SCALES} {_SET}"
_REDUCESCATTER = f"name=None op=Average {_SET} {_SCALES}"
_BLOCKING_REDUCESCATTER = f"name=None compression=none op=Average {_SET} {_SCALES}"

#: Parameters of functions and classes with their defaults.
PARAMETERS = {
    "init": "comm=None process_sets=None",
    **dict.fromkeys("shutdown is_initialized size rank local_size local_rank cross_size cross_rank".split(), ""),
    **dict.fromkeys("mpi_built mpi_enabled mpi_threads_supported gloo_built gloo_enabled nccl_built".split(), ""),
    **dict.fromkeys("ddl_built ccl_built cuda_built rocm_built stop_timeline".split(), ""),
    "is_homogeneous": "",
    "check_extension": "ext_name ext_env_var pkg_path *",
    "gpu_available": "ext_base_name verbose=False",
    "start_timeline": "file_path mark_cycles=False",
    "allreduce": f"tensor {_BLOCKING_ALLREDUCE}",
    **dict.fromkeys("allreduce_ allreduce_async allreduce_async_".split(), f"tensor {_ALLREDUCE}"),
    "grouped_allreduce": f"tensors {_BLOCKING_ALLREDUCE}",
    **dict.fromkeys(
        "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_".split(), f"tensors {_ALLREDUCE}"
    ),
    "sparse_allreduce_async": f"tensor name op {_SET}",
    **dict.fromkeys("allgather allgather_async".split(), f"tensor name=None {_SET}"),
    **dict.fromkeys("grouped_allgather grouped_allgather_async".split(), f"tensors name=None {_SET}"),
    **dict.fromkeys(
        "broadcast broadcast_ broadcast_async broadcast_async_".split(), f"tensor root_rank name=None {_SET}"
    ),
    **dict.fromkeys("alltoall alltoall_async".split(), f"tensor splits=None name=None {_SET}"),
    "reducescatter": f"tensor {_BLOCKING_REDUCESCATTER}",
    "reducescatter_async": f"tensor {_REDUCESCATTER}",
    "grouped_reducescatter": f"tensors {_BLOCKING_REDUCESCATTER}",
    "grouped_reducescatter_async": f"tensors {_REDUCESCATTER}",
    "join": "device=-1",
    "barrier": _SET,
    **dict.fromkeys("poll synchronize".split(), "handle"),
    "ProcessSet": "ranks_or_comm",
    **dict.fromkeys("add_process_set remove_process_set".split(), "process_set"),
    "DistributedOptimizer": "optimizer named_parameters=None compression=none backward_passes_per_step=1 op=Average "
    f"gradient_predivide_factor=1.0 num_groups=0 groups=None sparse_as_dense=False {_SET}",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model=None",
    "broadcast_object": f"obj root_rank=0 name=None {_SET}",
    "allgather_object": "obj name=None",
    "SyncBatchNorm": "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True",
    "run": "func args=() kwargs=None num_proc=None",
    "elastic.run": "func",
    "elastic.TorchState": "model=None optimizer=None **",
    "elastic.TorchState.register_reset_callbacks": "self callbacks",
    "elastic.ObjectState": "bcast_object get_rank **",
    "elastic.State": "bcast_object get_rank",
    "elastic.ElasticSampler": "dataset shuffle=True seed=0",
    "elastic.ElasticSampler.record_batch": "self batch_idx batch_size",
    "elastic.ElasticSampler.set_epoch": "self epoch",
    "elastic.ElasticSampler.load_state_dict": "self state_dict",
    "elastic.HostsUpdatedInterrupt": "skip_sync=False",
    "DistributedOptimizer.synchronize": "self",
    "DistributedOptimizer.skip_synchronize": "self",
    "DistributedOptimizer.set_backward_passes_per_step": "self passes",
    "Compression.none.compress": "tensor",
    "Compression.none.decompress": "tensor ctx",
    "compression.Compressor.compress": "tensor",
    "compression.Compressor.decompress": "tensor ctx",
    "compression.NoneCompressor.compress": "tensor",
    "compression.FP16Compressor.decompress": "tensor ctx",
}

#: Parameters that have a default here and none there.
OPTIONAL_HERE = {"root_rank": 0, "name": None, "op": hvd.Average, "obj": None, "bcast_object": None, "get_rank": None}

#: Modules of horovod.torch, and what scripts import from them.
MODULES = {
    "mpi_ops": "init shutdown size rank allreduce allreduce_async_ allgather broadcast_async_ alltoall reducescatter "
    "grouped_allreduce_async_ sparse_allreduce_async join barrier poll synchronize Average Sum Adasum Min Max Product "
    "ProcessSet global_process_set add_process_set remove_process_set HorovodInternalError gpu_available rocm_built "
    "is_homogeneous nccl_built start_timeline",
    "functions": "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters",
    "compression": "Compression Compressor NoneCompressor FP16Compressor",
    "optimizer": "DistributedOptimizer",
    "sync_batch_norm": "SyncBatchNorm",
    "elastic": "run TorchState ObjectState State ElasticSampler",
    "elastic.sampler": "ElasticSampler",
    "elastic.state": "TorchState",
}

VALUES = "Average Sum Adasum Min Max Product Compression global_process_set HorovodInternalError elastic".split()
METHODS = {
    "ProcessSet": "size rank included",
    "DistributedOptimizer": "synchronize skip_synchronize set_backward_passes_per_step",
    "elastic.TorchState": "save restore sync commit check_host_updates register_reset_callbacks on_reset",
    "elastic.ElasticSampler": "record_batch record_indices set_epoch reset state_dict load_state_dict",
    "Compression.none": "compress decompress",
    "Compression.fp16": "compress decompress",
}


def resolved(path: str) -> object:
    value: object = hvd
    for name in path.split("."):
        value = getattr(value, name)
    return value


def parameters(function: object) -> inspect.Signature:
    if inspect.isclass(function) and "__new__" in vars(function):
        function = vars(function)["__new__"]
    signature = inspect.signature(function)  # type: ignore[arg-type]
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "cls"])


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_their_order(name: str):
    expected = PARAMETERS[name].split()
    here = list(parameters(resolved(name)).parameters.values())
    kinds = {"*": inspect.Parameter.VAR_POSITIONAL, "**": inspect.Parameter.VAR_KEYWORD}
    if expected[-1:] in (["*"], ["**"]):
        assert here.pop().kind is kinds[expected.pop()]
    positional = [p for p in here if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional][: len(expected)] == [wanted.partition("=")[0] for wanted in expected]
    others = set(here) - set(positional[: len(expected)])
    assert all(p.default is not inspect.Parameter.empty for p in others)
    known = {"none": (hvd.Compression.none, None), "all": (hvd.global_process_set, None), "Average": (hvd.Average,)}
    for wanted, parameter in zip(expected, positional):
        what, _, default = wanted.partition("=")
        if not default:
            assert parameter.default is inspect.Parameter.empty or parameter.default == OPTIONAL_HERE[what]
        elif default in known:
            assert parameter.default in known[default]
        else:
            assert repr(parameter.default) == default


def test_what_is_no_function():
    for name in VALUES:
        assert name in hvd.__all__ and resolved(name) is not None
    for name, methods in METHODS.items():
        assert all(callable(getattr(resolved(name), method)) for method in methods.split()), name
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert len({hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product}) == 6
    assert {name for name in PARAMETERS if "." not in name} <= set(hvd.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_the_names_of_their_package(name: str):
    module = importlib.import_module(f"ddl_torch.{name}")
    assert module is resolved(name)
    for public in MODULES[name].split():
        assert public in module.__all__
        if hasattr(hvd, public) and (name, public) != ("elastic", "run"):  # hvd.run starts ranks
            assert getattr(module, public) is getattr(hvd, public)


def test_questions_about_what_is_there():
    assert not hvd.gpu_available("torch") and hvd.check_extension("torch", "X", __file__, "mpi_lib_v2") is None
    assert str(hvd.ProcessSet([1, 0])) == "ProcessSet(process_set_id=None, ranks=[0, 1], mpi_comm=None)"


@pytest.mark.slow
def test_only_public_names_are_listed():
    """In a new process, as only there nothing else has been loaded."""
    program = "import {0}; print([n for n in dir({0}) if n not in {0}.__all__], set({0}.__all__) - set(dir({0})))"
    for package in ("ddl", "ddl_torch"):
        command = [sys.executable, "-c", program.format(package)]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        listed, missing = text.rsplit("] ", 1)
        assert missing.strip() == "set()"
        assert all(re.fullmatch(r"'__\w+__'", name) for name in listed[1:].split(", "))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("DistributedOptimiser", "DistributedOptimizer"), ("allReduce", "allreduce"), ("broadcast_parameter", None)],
)
def test_a_misspelt_name_is_answered_with_the_right_one(name: str, meant: str):
    with pytest.raises(AttributeError) as caught:
        getattr(hvd, name)
    meant = meant or "broadcast_parameters"
    assert str(caught.value) == f"module 'ddl_torch' has no attribute {name!r} (did you mean {meant!r}?)"


def test_a_misspelt_compression_is_answered_with_the_right_one():
    for wrong, meant in (("fp61", "fp16"), ("PowerSDG", "powersgd"), ("int9", "int8")):
        with pytest.raises(hvd.InvalidArgument, match=rf"compression='{wrong}' \(did you mean '{meant}'\?\)"):
            hvd.compression.parse(wrong)


def test_the_documentation_names_each():
    text = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    section = text.partition("\n## Horovod's names\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    names = {*(name for name in PARAMETERS if name.count(".") < 2), *VALUES, *MODULES}
    assert {name.rpartition(".")[2] for name in names} <= named
