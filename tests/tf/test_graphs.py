"""What TensorFlow does with graphs: names of ops in loops, branches and functions; what is always run; other names."""

from __future__ import annotations

import time

import pytest
import ranks

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.processes


def test_names_of_places():
    """A node's place: the calls that lead to it, the turn of its loop; what counts or differs by branch is left out."""
    from ddl_tensorflow._names import ITERATIONS, Place

    place = Place.of("PartitionedCall_1/scope/DdlCall", "scope/DdlCall", 0, 0)
    assert (place.calls, place.turn) == ("PartitionedCall_1", "")
    place = Place.of(
        "map/while/body/_1/map/while/cond/else/_64/map/while/cond/DdlCall", "map/while/cond/DdlCall", 7, ITERATIONS + 3
    )
    assert (place.calls, place.turn) == ("", "3")  # the op's own scope
    place = Place.of("g/while/body/_1/while/f/cond/then/_2/cond/DdlCall", "cond/DdlCall", 0, 0)
    assert (place.calls, place.turn) == ("g/while/while/f/cond", "")
    place = Place.of("a/body/_1/a/b/body/_5/a/b/DdlCall", "a/b/DdlCall", 0xAF, 2)
    assert (place.calls, place.turn) == ("", "af.2")
    assert Place.of("renamed", "DdlCall", 0, 0).calls == ""


def in_turn(x, seconds):
    """Return ``x`` after some time."""

    def wait(value, pause):
        time.sleep(float(pause))
        return value

    waited = tf.numpy_function(wait, [x, seconds], x.dtype, stateful=False)
    waited.set_shape(x.shape)
    return waited


def several_times():
    """One op runs in several places at once, and ranks come to them in opposite orders."""
    import ddl_tensorflow as ddl

    ddl.init()
    rank, size = ddl.rank(), ddl.size()

    def late(i, count):
        return 0.01 * tf.cast(count - 1 - i if rank else i, tf.float32)

    @tf.function
    def mapped(x):
        count = tf.shape(x)[0]
        return tf.map_fn(
            lambda i: ddl.allreduce(in_turn(x[i], late(i, count)), op=ddl.Sum),
            tf.range(count),
            fn_output_signature=x.dtype,
        )

    x = tf.range(6.0)
    assert mapped(x).numpy().tolist() == [size * i for i in range(6)]

    @tf.function
    def nested(x):
        def inner(row, i):
            return ddl.allreduce(in_turn(x[row, i], late(i + row, 5)), op=ddl.Sum)

        def outer(row):
            return tf.map_fn(lambda i: inner(row, i), tf.range(3), fn_output_signature=x.dtype)

        return tf.map_fn(outer, tf.range(3), fn_output_signature=x.dtype)

    y = tf.reshape(tf.range(9.0), [3, 3])
    assert nested(y).numpy().tolist() == (size * y).numpy().tolist()

    @tf.function
    def mean(x, seconds):
        return ddl.allreduce(in_turn(x, seconds)), ddl.allreduce(in_turn(x, 0.02 - seconds), name="given", op=ddl.Sum)

    @tf.function
    def twice():
        return mean(tf.constant(1.0), tf.constant(0.02 * rank)), mean(tf.constant(7.0), tf.constant(0.02 - 0.02 * rank))

    assert [[value.numpy() for value in pair] for pair in twice()] == [[1, size], [7, 7 * size]]

    @tf.function
    def one_name(x):
        parts = [x, 2 * x, 3 * x]
        slow = [in_turn(part, late(tf.constant(i), 3)) for i, part in enumerate(parts)]
        return [ddl.allreduce(part, name="x", op=ddl.Sum) for part in slow]

    assert [value.numpy() for value in one_name(tf.constant(1.0))] == [size, 2 * size, 3 * size]


def session_with_loops():
    """The same in a graph of TF1, where functions cannot capture what was made eagerly."""
    import ddl_tensorflow as ddl

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        mapped = tf.map_fn(lambda element: ddl.allreduce(element, op=ddl.Sum), tf.range(12.0))
        call = tf.function(lambda element: ddl.broadcast(element, 1))(tf.constant(3.0 + ddl.rank()))
        results = session.run([mapped, call, ddl.rank_op(), ddl.size_op(), ddl.local_size_op(), ddl.local_rank_op()])
    assert results[0].tolist() == [2 * i for i in range(12)]
    assert results[1:] == [4.0, ddl.rank(), 2, 2, ddl.rank()]


def tracing_does_not_matter():
    """Names do not count what was traced before; branches of a condition have one name."""
    import ddl_tensorflow as ddl

    rank, size = ddl.rank(), ddl.size()
    for _ in range(3 * rank):
        tf.function(
            lambda x: ddl.allreduce(tf.while_loop(lambda i: i < 1, lambda i: i + 1, [x])[0])
        ).get_concrete_function(1)

    def summed(x):
        return ddl.allreduce(x, op=ddl.Sum)

    summed = tf.function(summed)
    if rank:
        summed.get_concrete_function(tf.constant([1, 2]))  # another type: traced once more

    @tf.function
    def branches(x, which):
        doubled = tf.cond(
            which, lambda: 2 * ddl.allreduce(x, name="b", op=ddl.Sum), lambda: ddl.allreduce(x, name="b", op=ddl.Sum)
        )
        return doubled, ddl.allreduce(x, op=ddl.Sum), summed(x)

    got = [value.numpy() for value in branches(tf.constant(1.0), tf.constant(bool(rank)))]
    assert got == [size * (1 + rank), size, size]
    assert summed(tf.constant(5.0)).numpy() == 5 * size


def gradients_of_one_op():
    """The gradient of one op, taken twice in one function, or of another gradient."""
    import ddl_tensorflow as ddl

    size = ddl.size()

    @tf.function
    def twice(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = ddl.allreduce(x, op=ddl.Sum)
            once, again = y * y, 3.0 * y
        return tape.gradient(once, x), tape.gradient(again, x)

    assert [value.numpy() for value in twice(tf.constant(1.0))] == [2.0 * size * size, 3.0 * size]

    @tf.function
    def second(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = ddl.allreduce(x, op=ddl.Sum) ** 3
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, then = second(tf.constant(1.0))
    assert (first.numpy(), then.numpy()) == (3.0 * size**3, 6.0 * size**3)


def always_run():
    """A barrier and a join that nobody uses; a function that is traced anew; a value that nobody uses."""
    import ddl_tensorflow as ddl

    rank = ddl.rank()
    passed = []

    @tf.function
    def meet(x):
        tf.numpy_function(lambda: passed.append(time.monotonic()), [], [])
        ddl.barrier()
        tf.numpy_function(lambda: passed.append(time.monotonic()), [], [])
        ddl.allreduce(x)  # unused on all ranks alike: not run
        return x

    for shape in (1, 2, 3):
        time.sleep(0.1 * rank)
        meet(tf.zeros([shape]))
    assert len(passed) == 6
    of_all = ddl.allgather_object(passed)
    for before, after in ((0, 1), (2, 3), (4, 5)):
        assert max(of_rank[before] for of_rank in of_all) <= min(of_rank[after] for of_rank in of_all)
    assert ddl.barrier() is None
    joined = tf.function(ddl.join)
    if rank == 1:
        time.sleep(0.1)
        assert ddl.allreduce(tf.constant(1.0), op=ddl.Sum, name="alone").numpy() == 1
        assert [
            result.numpy() for result in ddl.grouped_allreduce([tf.constant(1.0), tf.constant([2])], op=ddl.Sum)
        ] == [
            1,
            2,
        ]
        with pytest.raises(ddl.HorovodInternalError, match="only all-reduces are possible while a rank has joined"):
            ddl.allgather(tf.constant([1]), name="gone")
    assert joined().numpy() == 1 and ddl.join().dtype == tf.int32


def threads():
    """Eager calls of many threads, of a function's Python code, and those that TensorFlow makes later."""
    import threading

    import ddl_tensorflow as ddl
    from ddl_tensorflow._call import native_op

    size = ddl.size()
    results = {}

    def submit(i):
        results[i] = [
            ddl.allreduce(tf.fill([i + 1], float(k)), op=ddl.Sum, name=f"{i}.{k}").numpy().tolist() for k in range(20)
        ]

    workers = [threading.Thread(target=submit, args=(i,)) for i in range(8)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert results == {i: [[k * size] * (i + 1) for k in range(20)] for i in range(8)}

    @tf.function
    def outer(x):
        y = ddl.allreduce(x, op=ddl.Sum)
        return tf.py_function(lambda value: ddl.allreduce(value, op=ddl.Sum, name="nested"), [y], tf.float32)

    assert outer(tf.constant(1.0)).numpy() == size**2
    tf.config.experimental.set_synchronous_execution(False)
    later = [ddl.allreduce(tf.constant(float(k)), op=ddl.Sum) for k in range(10)]
    assert [result.numpy() for result in later] == [k * size for k in range(10)]
    tf.config.experimental.set_synchronous_execution(True)
    assert len(native_op()._free) < 30  # numbers are used again


def everything():
    several_times()
    session_with_loops()
    tracing_does_not_matter()
    gradients_of_one_op()
    always_run()
    threads()


@pytest.mark.slow
def test_one_op_in_several_places():
    ranks.run(2, everything, env={"TF_NUM_INTEROP_THREADS": "8"})  # else nothing runs at once


def without_the_op():
    import ddl_tensorflow as ddl

    ddl.init()
    tracing_does_not_matter()
    gradients_of_one_op()
    always_run()


@pytest.mark.slow
def test_what_is_always_run_without_the_op():
    ranks.run(2, without_the_op, env={"DDL_TENSORFLOW_OP": "0"})
