"""What goes wrong comes out as DDL's error, with its text, wherever TensorFlow was when it happened; nothing hangs."""

from __future__ import annotations

import functools
import os
import pickle
import threading

import pytest
import ranks
from negotiation.deadlines import expire

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes

WAYS = {"op": {}, "numpy": {"DDL_TENSORFLOW_OP": "0"}}


def session(function):
    with tf.Graph().as_default(), tf.compat.v1.Session() as running:
        return running.run(function())


MODES = {"eagerly": lambda function: function(), "function": lambda f: tf.function(f)(), "session": session}


def mistakes():
    """Errors on all ranks alike, and that harm nothing."""
    import ddl_tensorflow as ddl

    with pytest.raises(ddl.InvalidState, match="init"):
        ddl.allreduce(tf.ones([2]))
    ddl.init()
    rank, size = ddl.rank(), ddl.size()
    for mode, run in MODES.items():
        name = f"{mode}.differs"
        with pytest.raises(ddl.HorovodInternalError, match=r"rank 0 submitted .*but rank 1 ") as caught:
            run(lambda name=name: ddl.allreduce(tf.ones([2 + rank]), name=name))
        assert str(caught.value).startswith(f"[rank {rank}/{size}") and "allreduce" in str(caught.value)
        if mode != "eagerly":
            assert isinstance(caught.value, tf.errors.OpError)
        with pytest.raises(ddl.InvalidArgument, match=rf"^\[rank {rank}/{size}.*rank 9 is not in"):
            run(lambda: ddl.broadcast(tf.ones([2]), root_rank=9))
        with pytest.raises(ddl.InvalidArgument, match="truth values have no average"):
            run(lambda: ddl.allreduce(tf.constant([True])))
        with pytest.raises(ddl.InvalidArgument, match="Adasum needs float"):
            run(lambda: ddl.allreduce(tf.constant([1]), op=ddl.Adasum))
        with pytest.raises(ddl.InvalidArgument, match="sum to the 4 rows"):
            run(lambda: ddl.alltoall(tf.ones([4]), [9] * size))
        after = run(lambda: ddl.allreduce(tf.ones([2]), op=ddl.Sum))
        assert tf.constant(after).numpy().tolist() == [size] * 2
    with pytest.raises(ddl.InvalidArgument, match="SparseTensor is no dense tensor"):
        ddl.allreduce(tf.sparse.from_dense([1.0]))
    for verb in (ddl.allreduce, ddl.allgather, ddl.alltoall, ddl.reducescatter):
        with pytest.raises(
            ddl.InvalidArgument, match=rf"^\[rank {rank}/{size} host \S+\] {verb.__name__}: .* type string"
        ):
            verb(tf.constant(["a", "b"]))
    with pytest.raises(ddl.InvalidArgument, match="a NoneType is no tensor"):
        ddl.broadcast(None, 0)
    with pytest.raises(ddl.InvalidArgument, match="IndexedSlices can be averaged and summed"):
        ddl.allreduce(tf.IndexedSlices(tf.ones([1]), tf.constant([0])), op=ddl.Max)
    if os.environ.get("DDL_TENSORFLOW_OP") != "0":
        assert ddl.allreduce(tf.ones([1] * 17)).shape.rank == 17  # small and eager: without the op
        with pytest.raises(ddl.InvalidArgument, match="17 dimensions; reshape it to 16"):
            tf.function(lambda: ddl.allreduce(tf.ones([1] * 17)))()
        several_at_once(ddl)
    ddl.shutdown()
    ddl.init()
    assert ddl.allreduce(tf.ones([1]), op=ddl.Sum).numpy()[0] == size


def several_at_once(ddl):
    """One op fails while another waits, or TensorFlow cancels what is under way: the text is DDL's."""
    rank = ddl.rank()
    queue = tf.queue.FIFOQueue(1, tf.float32)

    @tf.function
    def beside_others(x):
        return ddl.allreduce(x[: 1 + rank], name="wrong"), ddl.allreduce(x, name="right"), queue.dequeue()

    @tf.function
    def in_a_loop(x):
        for _ in tf.range(3):
            x += ddl.allreduce(x[: 1 + rank], name="looped")[0]
        return x

    for function, name in ((beside_others, "wrong"), (in_a_loop, "while/looped")):
        with pytest.raises(
            ddl.HorovodInternalError, match=rf"^\[rank {rank}/{ddl.size()}.*allreduce.{name}'.* nothing was sent"
        ):
            function(tf.ones([4]))
    again = pickle.loads(pickle.dumps(ddl.broadcast_object(caught_in(ddl), allow_pickle=True)))
    assert type(again).__qualname__ == "CollectiveMismatch" and "sent" in str(again)


def caught_in(ddl):
    with pytest.raises(ddl.HorovodInternalError) as caught:
        tf.function(lambda: ddl.allreduce(tf.ones([1 + ddl.rank()]), name="sent"))()
    with pytest.raises(ddl.HorovodInternalError, match="^another text"):
        raise type(caught.value)("another text")  # as ddl.elastic.run does
    return caught.value


def classes():
    """Each error is of the class that Horovod's users expect, and DDL's; in all modes, and in ``fit``."""
    import keras
    import numpy as np

    import ddl_tensorflow as ddl
    from ddl.errors import CollectiveMismatch

    rank = ddl.rank()
    own, other = [ddl.add_process_set([r]) for r in range(2)][:: 1 - 2 * rank]
    mismatch = (CollectiveMismatch, tf.errors.FailedPreconditionError)
    wrong = (ddl.InvalidArgument, ValueError, tf.errors.InvalidArgumentError)
    missing = (ddl.InvalidArgument, NotImplementedError, RuntimeError)
    slices = tf.IndexedSlices(np.ones([1], "f"), np.zeros([1], "i"))
    table = {
        "shape": (lambda name: ddl.allreduce(tf.ones([2 + rank]), name=name), mismatch),
        "dtype": (lambda name: ddl.allgather(tf.cast(1 + tf.zeros([2]), [tf.int32, tf.half][rank]), name), mismatch),
        "op": (lambda name: ddl.reducescatter(tf.ones([2]), op=[ddl.Sum, ddl.Max][rank], name=name), mismatch),
        "root": (lambda name: ddl.broadcast(tf.ones([2]), rank, name), mismatch),
        "group": (lambda name: ddl.grouped_allreduce([tf.ones([1])] * (2 + rank), name=name), mismatch),
        "splits": (lambda name: ddl.alltoall(tf.ones([4]), [1, 2], name), wrong),
        "negative": (lambda name: ddl.alltoall(tf.ones([4]), [-1, 5], name), wrong),
        "uneven": (lambda name: ddl.alltoall(tf.ones([3]), None, name), wrong),
        "set": (lambda name: ddl.allreduce(tf.ones([2]), process_set=other, name=name), wrong),
        "set of alltoall": (lambda name: ddl.alltoall(tf.ones([2]), None, name, process_set=other), wrong),
        "root of a set": (lambda name: ddl.broadcast(tf.ones([2]), 1 - rank, name, process_set=own), wrong),
        "sparse": (lambda _: ddl.allreduce(slices, op=ddl.Adasum), missing),
        "sparse min": (lambda _: ddl.grouped_allreduce([slices], op=ddl.Min), missing),
        "adasum": (lambda _: ddl.reducescatter(tf.ones([2]), op=ddl.Adasum), missing),
        "grouped adasum": (lambda _: ddl.grouped_reducescatter([tf.ones([2])], op=ddl.Adasum), missing),
    }
    for what, (function, kinds) in table.items():
        for mode in MODES if what in ("shape", "splits", "set") else ("eagerly", "session"):  # a function takes 0.3 s
            with pytest.raises(ddl.Error) as caught:
                MODES[mode](functools.partial(function, f"{what}.{mode}".replace(" ", ".")))
            assert [kind.__name__ for kind in kinds if not isinstance(caught.value, kind)] == [], (what, mode)
            assert not isinstance(caught.value, tf.errors.AbortedError)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1 + rank)])
    model.compile(ddl.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        model.fit(np.ones([8, 4], "f"), np.ones([8, 1 + rank], "f"), batch_size=4, verbose=0)
    assert isinstance(caught.value, CollectiveMismatch)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_classes_are_those_of_horovod(way):
    ranks.run(2, classes, env=WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_mistakes(way):
    ranks.run(2, mistakes, initialise=False, env=WAYS[way])


def loses_a_rank(mode):
    import ddl_tensorflow as ddl

    ddl.init()
    ddl.allreduce(tf.ones([2]), name="warm")
    ranks.meet()
    if ddl.rank() == 1:
        os._exit(7)
    run = MODES[mode]
    with pytest.raises(ddl.HorovodInternalError, match="lost rank 1") as caught:
        run(lambda: ddl.allreduce(tf.ones([2]), name="x"))
    return type(caught.value).__qualname__


@pytest.mark.few(2)
@pytest.mark.faults
@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_dies_is_named(mode):
    first, died, third = ranks.run(3, loses_a_rank, mode, initialise=False, may_die=[1])
    assert died == 7 and first == third == "PeerLost"


def loses_a_rank_in_a_monitored_session():
    """At ABORTED such a session would begin anew, for ever."""
    import ddl_tensorflow as ddl

    tf1 = tf.compat.v1
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        train = step.assign_add(tf.cast(ddl.allreduce(1.0), tf.int64))
        with tf1.train.MonitoredTrainingSession() as session, pytest.raises(ddl.HorovodInternalError, match="rank 1"):
            for _ in range(9):
                if ddl.rank() == 1 and session.run(step) == 2:
                    os._exit(7)
                session.run(train)


@pytest.mark.faults
def test_a_monitored_session_ends_when_a_rank_has_died():
    assert ranks.run(2, loses_a_rank_in_a_monitored_session, may_die=[1]) == [None, 7]


def waits():
    import ddl_tensorflow as ddl

    ddl.init()
    ddl.barrier()
    threading.Thread(target=expire, args=(ddl.global_process_set.negotiator,), daemon=True).start()
    if ddl.rank() == 0:
        with pytest.raises(ddl.Error, match="'allreduce.lonely'.*rank.* did not submit it"):
            tf.function(lambda: ddl.allreduce(tf.ones([2]), name="lonely"))()
    else:
        with pytest.raises(ddl.Error):
            tf.function(lambda: ddl.allreduce(tf.ones([2]), name="other"))()


@pytest.mark.faults
def test_an_op_that_others_do_not_run_ends_at_its_deadline():
    ranks.run(2, waits, initialise=False)


def test_without_a_compiler_it_is_said_once(tmp_path, monkeypatch):
    """And with one that fails, the compiler's words are shown."""
    from ddl_tensorflow._build import BuildError, op_library

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler no-such-compiler"):
        op_library()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(BuildError, match="false .* failed"):
        op_library()
    assert [path.suffix for path in (tmp_path / "ddl").iterdir()] == [".lock"]  # nothing half done is left
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="cannot be used"):
        op_library()


def test_an_op_of_the_wheel_is_taken_only_if_it_fits(tmp_path):
    from ddl_tensorflow._build import prebuilt

    library = tmp_path / f"call_op-{tf.__version__}.so"
    asked = [flag for flag in tf.sysconfig.get_compile_flags() if not flag.startswith("-I")]
    assert asked and prebuilt(tmp_path) is None
    library.touch()
    library.with_suffix(".flags").write_text("\n".join(asked))
    assert prebuilt(tmp_path) == library
    library.with_suffix(".flags").write_text("\n".join([*asked, "-DEIGEN_MAX_ALIGN_BYTES=32"]))
    assert prebuilt(tmp_path) is None
    library.rename(tmp_path / "call_op-2.0.0.so")
    assert prebuilt(tmp_path) is None
