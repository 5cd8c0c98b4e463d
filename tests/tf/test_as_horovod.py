"""What scripts for Horovod do beside the usual: its modules, compressors of their own, operators by name, positions."""

from __future__ import annotations

import importlib
import logging
import re
from pathlib import Path

import pytest
import ranks

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import ddl_tensorflow as hvd  # noqa: E402 (it needs TensorFlow, which may not be there)
from ddl_tensorflow import _call, _compat  # noqa: E402

#: Names of Horovod's modules: each is that of the package, if the package has it.
MODULES = {
    "mpi_ops": "init shutdown size rank local_size local_rank cross_size cross_rank is_initialized is_homogeneous "
    "allreduce allgather broadcast broadcast_ alltoall reducescatter grouped_allreduce grouped_allgather join "
    "grouped_reducescatter size_op rank_op local_size_op local_rank_op process_set_included_op gpu_available "
    "Average Sum Adasum Min Max Product check_num_rank_power_of_2 handle_average_backwards_compatibility "
    "add_process_set remove_process_set global_process_set ProcessSet start_timeline stop_timeline "
    "mpi_built gloo_built nccl_built ddl_built",
    "functions": "allgather_object broadcast_object broadcast_object_fn broadcast_variables",
    "compression": "Compression Compressor NoneCompressor FP16Compressor",
    "elastic": "TensorFlowState TensorFlowKerasState",
    "keras.elastic": "KerasState CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback run",
    "keras": "allreduce DistributedOptimizer check_extension gpu_available is_homogeneous",
    "keras.callbacks": "BroadcastGlobalVariablesCallback",
    "data": "shard",
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_have_horovods_names_and_show_no_others(name: str):
    module = importlib.import_module(f"ddl_tensorflow.{name}")
    for public in MODULES[name].split():
        assert public in module.__all__
        if hasattr(hvd, public) and not name.startswith("keras"):
            assert getattr(module, public) is getattr(hvd, public)
    for shown in (module, hvd):
        assert set(shown.__all__) <= set(dir(shown))
        assert all(re.fullmatch(r"__\w+__", name) for name in set(dir(shown)) - set(shown.__all__))
    assert hvd.mpi_ops is importlib.import_module("ddl_tensorflow.mpi_ops")


def test_a_misspelt_name_is_answered_with_the_right_one():
    with pytest.raises(AttributeError, match=r"no attribute 'allReduce' \(did you mean 'allreduce'\?\)"):
        _ = hvd.allReduce


class Tenfold(hvd.compression.Compressor):
    """A compression of a user's own."""

    @staticmethod
    def compress(tensor):
        return tf.cast(10 * tensor, tf.float64), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tf.cast(tensor / 10, ctx)


def compressors():
    rank, size = hvd.rank(), hvd.size()
    x, total = tf.fill([2 * size], rank + 1.0), size * (size + 1) / 2
    for chosen in (Tenfold, hvd.compression.FP16Compressor, hvd.compression.NoneCompressor):
        for verb in (
            lambda c=chosen: hvd.allreduce(x, op=hvd.Sum, compression=c),
            lambda c=chosen: hvd.grouped_allreduce([x], op=hvd.Sum, compression=c)[0],
            lambda c=chosen: hvd.reducescatter(x, op=hvd.Sum, compression=c),
        ):
            assert set(verb().numpy().tolist()) == {total} and verb().dtype == tf.float32
        weight = keras.Variable([1.0, 2.0])
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=chosen).apply([x[:2]], [weight])
        assert weight.numpy().tolist() == [1 - total / size, 2 - total / size]
        table = tf.Variable(tf.zeros([4, 2]))
        with tf.GradientTape() as tape:
            loss = (rank + 1) * tf.reduce_sum(tf.gather(table, [1]))
        rows = hvd.DistributedGradientTape(tape, compression=chosen).gradient(loss, table)
        assert tf.convert_to_tensor(rows).numpy()[1].tolist() == [total / size] * 2


def positions():
    """Arguments by their places, as Horovod has them; operators by their names; lists, and complex numbers."""
    import ddl_tensorflow.keras as of_keras

    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) // 2
    none, own = hvd.Compression.none, [rank + 1] * size
    assert hvd.allreduce(own, None, "", "", none, "sum", 2.0, 0.5, "a").numpy().tolist() == [total] * size
    assert hvd.reducescatter(own, "", none, "Max", "r").numpy().tolist() == [size]
    assert hvd.grouped_allreduce([own], None, "", "", none, "max")[0].numpy().tolist() == [size] * size
    assert hvd.grouped_reducescatter([own], "", none, "MIN")[0].numpy().tolist() == [1]
    assert hvd.broadcast(own, 1, "b").numpy().tolist() == [2] * size
    assert hvd.allgather([[rank]], "g").numpy().tolist() == [[r] for r in range(size)]
    assert hvd.alltoall(own, [1] * size, "t")[0].numpy().tolist() == list(range(1, size + 1))
    assert of_keras.allreduce(own, "k", None, 2.0, 0.5, "sum").numpy().tolist() == [total] * size
    assert of_keras.allreduce(own, "k", op=of_keras.Max, compression=none).numpy().tolist() == [size] * size
    assert of_keras.reducescatter(own, "k", "max").numpy().tolist() == [size]
    assert of_keras.broadcast(own, 1, "k").numpy().tolist() == [2] * size
    assert of_keras.allgather([rank], "k").numpy().tolist() == list(range(size))
    with pytest.warns(DeprecationWarning, match="average= is deprecated") as warned:
        assert of_keras.allreduce([1.0], "k", False).numpy().tolist() == [size]
    assert warned[0].filename == __file__
    z = tf.constant([1 + 2j, -3j], tf.complex128) * (rank + 1)
    sums = [total * (1 + 2j), total * -3j]
    assert hvd.allreduce(z, op="sum").numpy().tolist() == sums
    assert hvd.allreduce([complex(rank, 1)], op="sum").numpy().tolist() == [complex(sum(range(size)), size)]
    assert hvd.allreduce(z, op="sum", prescale_factor=0.5).numpy().tolist() == [value / 2 for value in sums]
    assert hvd.reducescatter(z, op="sum").numpy().tolist() == [sums[rank]]
    assert hvd.broadcast(z, 1).numpy().tolist() == [2 * (1 + 2j), 2 * -3j]
    assert hvd.alltoall(z).numpy().tolist() == [(r + 1) * [1 + 2j, -3j][rank] for r in range(size)]
    for wrong, text in ((1, "op=1 is no operator"), ("summ", r"op='summ' is no operator \(did you mean 'sum'\?\)")):
        for verb in (hvd.allreduce, hvd.reducescatter, lambda t, op: hvd.grouped_allreduce([t], op=op)):
            with pytest.raises(hvd.InvalidArgument, match=text):
                verb(own, op=wrong)
        with pytest.raises(hvd.InvalidArgument, match=text):
            hvd.DistributedGradientTape(tf.GradientTape(), op=wrong)
    for verb in (hvd.allreduce, of_keras.allreduce):
        with pytest.raises(hvd.InvalidArgument, match="cannot both be given"):
            verb(own, average=True, op=hvd.Sum)


def everything():
    compressors()
    positions()
    with pytest.raises(tf.errors.OpError) as caught:
        hvd.broadcast([1.0], 7)
    caught.value.args = ("another text",)  # as whoever adds to a text of DDL's does
    assert str(caught.value) == "another text"


@pytest.mark.slow
@pytest.mark.processes
def test_scripts_for_horovod():
    ranks.run(2, everything)


def test_newer_versions_are_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setenv("DDL_TENSORFLOW_OP", "0")
    monkeypatch.setattr(_compat, "NEWEST_TESTED", {"TensorFlow": "2.3", "Keras": "3.0"})
    _compat.warn_if_newer.cache_clear()
    with caplog.at_level(logging.WARNING, "ddl"):
        for _ in range(2):
            _call.native_op.cache_clear()
            assert _call.native_op() is None
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    _call.native_op.cache_clear()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert texts[0].startswith(f"TensorFlow {tf.__version__} is newer than 2.3, ") and "'tensorflow==2.3.*'" in texts[0]
    assert texts[1].startswith(f"Keras {keras.__version__} is newer than 3.0, ") and "'keras==3.0.*'" in texts[1]


def test_what_was_tested_is_what_the_documentation_says():
    text = (Path(__file__).parents[2] / "docs" / "tensorflow.md").read_text(encoding="utf-8")
    newest = _compat.NEWEST_TESTED
    assert f"tested with TensorFlow {newest['TensorFlow']} and Keras {newest['Keras']}" in text
    assert _compat._numbers("2.21.1") == _compat._numbers("2.21") < _compat._numbers("2.100.0rc1")
