"""Every public name of ``horovod.tensorflow`` 0.28 is in ``ddl_tensorflow``, takes the same parameters, and is tested.

Names and parameters are written out here, so no Horovod is needed. What DDL adds can only be passed by keyword, or
comes after Horovod's.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

import ddl_tensorflow as hvd  # noqa: E402 (it needs TensorFlow, which may not be there)

HERE = Path(__file__).parent
_SCALES = "prescale_factor=1.0 postscale_factor=1.0"
_SET = "process_set=all"
_DEVICES = "device_dense='' device_sparse=''"
_DENSE = "device_dense='' compression=none"

#: Parameters of functions with their defaults, and which file tests them.
PARAMETERS = {
    "init": ("comm=None process_sets=None", "test_verbs"),
    "shutdown": ("", "test_errors"),
    **dict.fromkeys("is_initialized size rank local_size local_rank cross_size cross_rank".split(), ("", "test_names")),
    **dict.fromkeys("mpi_built mpi_enabled mpi_threads_supported gloo_built".split(), ("", "test_names")),
    **dict.fromkeys("gloo_enabled nccl_built ddl_built ccl_built cuda_built rocm_built".split(), ("", "test_names")),
    "is_homogeneous": ("", "test_names"),
    "start_timeline": ("file_path mark_cycles=False", "test_names"),
    "stop_timeline": ("", "test_names"),
    "allreduce": (
        f"tensor average=None {_DEVICES} compression=none op=None {_SCALES} name=None {_SET} ignore_name_scope=False",
        "test_verbs",
    ),
    "grouped_allreduce": (
        f"tensors average=None {_DEVICES} compression=none op=None {_SCALES} {_SET} ignore_name_scope=False name=None",
        "test_grouped",
    ),
    "reducescatter": (f"tensor {_DENSE} op=Average name=None {_SET} ignore_name_scope=False {_SCALES}", "test_verbs"),
    "grouped_reducescatter": (f"tensors {_DENSE} op=Average {_SET} {_SCALES}", "test_grouped"),
    "allgather": (f"tensor name=None ignore_name_scope=False {_SET}", "test_verbs"),
    "grouped_allgather": (f"tensors name=None ignore_name_scope=False {_SET}", "test_grouped"),
    "broadcast": (f"tensor root_rank name=None ignore_name_scope=False {_SET}", "test_verbs"),
    "alltoall": (f"tensor splits=None name=None ignore_name_scope=False {_SET}", "test_verbs"),
    "broadcast_": (f"variables root_rank name=None {_SET}", "test_variables"),
    "broadcast_variables": (f"variables root_rank {_SET} inplace=False", "test_variables"),
    "broadcast_global_variables": ("root_rank", "test_variables"),
    "BroadcastGlobalVariablesHook": ("root_rank device=''", "test_variables"),
    "broadcast_object": (f"obj root_rank=0 session=None name=None {_SET}", "test_variables"),
    "broadcast_object_fn": (f"root_rank=0 session=None name=None {_SET}", "test_variables"),
    "allgather_object": (f"obj session=None name=None {_SET}", "test_variables"),
    "join": ("", "test_graphs"),
    "size_op": ("process_set_id=0 name=None", "test_graphs"),
    "process_set_included_op": ("process_set_id=0 name=None", "test_names"),
    **dict.fromkeys("rank_op local_rank_op local_size_op".split(), ("name=None", "test_graphs")),
    "add_process_set": ("process_set", "test_verbs"),
    "remove_process_set": ("process_set", "test_names"),
    "ProcessSet": ("ranks_or_comm", "test_names"),
    "elastic.run": ("func", "test_elastic"),
    "elastic.TensorFlowState": ("variables=None session=None **", "test_elastic"),
    "elastic.TensorFlowKerasState": ("model optimizer=None backend=None **", "test_elastic"),
    "check_extension": ("ext_name ext_env_var pkg_path *", "test_names"),
    "check_num_rank_power_of_2": ("num_rank", "test_names"),
    "gpu_available": ("ext_base_name verbose=False", "test_names"),
    "handle_average_backwards_compatibility": ("op average", "test_names"),
    "split_list": ("l n", "test_names"),
    "vars_to_refs": ("vars", "test_names"),
    "refs_to_vars": ("refs", "test_names"),
}
#: What is no function.
VALUES = {
    **dict.fromkeys("Average Sum Min Max Product Adasum Compression".split(), "test_verbs"),
    "global_process_set": "test_names",
    "elastic": "test_elastic",
}
#: Classes, and functions with parameters of their own; each stands in one of these tests.
OTHERS = {
    "DistributedOptimizer": "test_optimizer",
    "DistributedGradientTape": "test_gradients",
    "PartialDistributedGradientTape": "test_gradients",
    "SyncBatchNormalization": "test_sync_batch_normalization",
}
#: Parameters that have a default here and none there.
OPTIONAL_HERE = {"root_rank": 0, "obj": None}


def resolved(path: str) -> object:
    value: object = hvd
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_their_order(name: str):
    expected = PARAMETERS[name][0].split()
    here = list(inspect.signature(resolved(name)).parameters.values())  # type: ignore[arg-type]
    if expected[-1:] in (["**"], ["*"]):
        assert here.pop().kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        expected.pop()
    positional = [p for p in here if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional][: len(expected)] == [wanted.partition("=")[0] for wanted in expected]
    assert all(p.default is not inspect.Parameter.empty for p in here if p not in positional[: len(expected)])
    known = {"none": hvd.Compression.none, "all": hvd.global_process_set, "Average": hvd.Average}
    for wanted, parameter in zip(expected, positional):
        what, _, default = wanted.partition("=")
        if not default:
            assert parameter.default is inspect.Parameter.empty or parameter.default == OPTIONAL_HERE[what]
        elif default in known:
            assert parameter.default == known[default]
        else:
            assert repr(parameter.default) == default


def test_each_is_public_and_tested():
    tests = {name: test for name, (_, test) in PARAMETERS.items()} | VALUES
    for name, test in tests.items():
        assert name.partition(".")[0] in hvd.__all__, name
        text = (HERE / f"{test}.py").read_text(encoding="utf-8")
        text = text.partition("#: Parameters of functions")[0] + text.partition("\ndef resolved(")[2]
        assert re.search(rf"\b(ddl|hvd)\.{re.escape(name)}\b|\b{name}\b", text), f"{name} is not tested in {test}.py"
    assert sorted(set(hvd.__all__)) == sorted(hvd.__all__) and all(hasattr(hvd, name) for name in hvd.__all__)
    for name, test in OTHERS.items():
        assert name in hvd.__all__ and name in (HERE / f"{test}.py").read_text(encoding="utf-8"), name
    # Horovod's LocalGradientAggregationHelper is what its DistributedOptimizer is made of, and no part of its API.
    assert len(tests.keys() | OTHERS.keys()) >= 64


def test_without_tensorflow_it_says_what_to_install():
    code = "import sys; sys.modules['tensorflow'] = None; import ddl_tensorflow"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert "ModuleNotFoundError: ddl_tensorflow needs TensorFlow" in done.stderr and "ddl_torch" in done.stderr


def test_what_is_there():
    flags = (
        "mpi_built mpi_enabled mpi_threads_supported gloo_built gloo_enabled nccl_built ccl_built cuda_built rocm_built"
    )
    assert not any(resolved(name)() for name in flags.split()) and hvd.ddl_built() is True  # type: ignore[operator]
    assert not hvd.gpu_available("tensorflow") and hvd.check_extension("tensorflow", "X", "path") is None
    assert [n for n in range(9) if hvd.check_num_rank_power_of_2(n)] == [1, 2, 4, 8]
    assert hvd.split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert hvd.handle_average_backwards_compatibility(None, None) == hvd.Average
    with pytest.warns(DeprecationWarning, match="average= is deprecated"):
        assert hvd.handle_average_backwards_compatibility(op=None, average=False) == hvd.Sum

    class Variable:
        def ref(self):
            return {"of": self}.get

    variable = Variable()
    assert len(hvd.vars_to_refs([variable, [variable]])) == 2 and isinstance(hvd.vars_to_refs([[variable]])[0], tuple)


def of_a_job(folder: str):
    import tensorflow as tf

    assert not hvd.is_initialized()
    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[hvd.ProcessSet([1])])
    assert hvd.is_initialized() and hvd.is_homogeneous()
    assert (hvd.rank(), hvd.local_rank(), hvd.cross_rank()) == (hvd.local_rank(), hvd.rank(), 0)
    assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (2, 2, 1)
    assert hvd.global_process_set.size() == 2 and hvd.process_set_by_id(1).ranks == [1]
    included = tf.function(lambda: [hvd.process_set_included_op(1), hvd.process_set_included_op(), hvd.size_op(1)])
    assert [value.numpy() for value in included()] == [hvd.rank(), 1, 1]
    with pytest.raises(hvd.InvalidArgument, match="no process set 7"):
        hvd.size_op(7)
    with pytest.raises(hvd.InvalidArgument, match="in use already"):
        hvd.add_process_set(pair)
    assert hvd.remove_process_set(hvd.process_set_by_id(1))
    refs = hvd.vars_to_refs([tf.Variable(1.0)])
    assert hvd.refs_to_vars(refs)[0].numpy() == 1.0 and {refs: 1}
    path = f"{folder}/timeline.json"
    hvd.start_timeline(path)
    with pytest.warns(DeprecationWarning, match="average= is deprecated") as warned:
        hvd.allreduce(tf.ones([1]), average=True, name="seen")
    assert warned[0].filename == __file__
    hvd.stop_timeline()
    return Path(path).read_text(encoding="utf-8") if hvd.rank() == 0 else ""


@pytest.mark.processes
def test_a_job(tmp_path: Path):
    import ranks

    written, _ = ranks.run(2, of_a_job, str(tmp_path), initialise=False)
    assert "allreduce.seen" in written
