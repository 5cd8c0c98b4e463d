"""Every public name of ``horovod.torch`` 0.28 is in ``ddl_torch``, and takes the same parameters in the same order.

They are written out here, so no Horovod is needed. What DDL adds to a function can only be passed by keyword.
"""

from __future__ import annotations

import inspect
import re
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
    "elastic.ElasticSampler": "dataset shuffle=True seed=0",
}

#: Parameters that have a default here and none there.
OPTIONAL_HERE = {"root_rank": 0, "name": None, "op": hvd.Average, "obj": None}

VALUES = "Average Sum Adasum Min Max Product Compression global_process_set HorovodInternalError elastic".split()
METHODS = {
    "ProcessSet": "size rank included",
    "DistributedOptimizer": "synchronize skip_synchronize set_backward_passes_per_step",
    "elastic.TorchState": "save restore sync commit check_host_updates register_reset_callbacks on_reset",
    "elastic.ElasticSampler": "record_batch record_indices set_epoch reset state_dict load_state_dict",
    "Compression.none": "compress decompress",
    "Compression.fp16": "compress decompress",
}


def found(path: str) -> object:
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
    here = list(parameters(found(name)).parameters.values())
    if expected[-1:] == ["**"]:
        assert here.pop().kind is inspect.Parameter.VAR_KEYWORD
        expected.pop()
    positional = [p for p in here if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional][: len(expected)] == [one.partition("=")[0] for one in expected]
    others = set(here) - set(positional[: len(expected)])
    assert all(p.default is not inspect.Parameter.empty for p in others)
    known = {"none": (hvd.Compression.none, None), "all": (hvd.global_process_set, None), "Average": (hvd.Average,)}
    for one, parameter in zip(expected, positional):
        what, _, default = one.partition("=")
        if not default:
            assert parameter.default is inspect.Parameter.empty or parameter.default == OPTIONAL_HERE[what]
        elif default in known:
            assert parameter.default in known[default]
        else:
            assert repr(parameter.default) == default


def test_what_is_no_function():
    for name in VALUES:
        assert name in hvd.__all__ and found(name) is not None
    for name, methods in METHODS.items():
        assert all(callable(getattr(found(name), method)) for method in methods.split()), name
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    assert len({hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product}) == 6
    assert {name for name in PARAMETERS if "." not in name} <= set(hvd.__all__)


def test_the_documentation_names_each():
    text = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    section = text.partition("\n## Horovod's names\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    names = {*PARAMETERS, *VALUES}
    assert {name.rpartition(".")[2] for name in names} <= named
