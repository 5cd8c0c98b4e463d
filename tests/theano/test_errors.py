"""What goes wrong comes out of Theano's functions as DDL's error, with its text and no other; nothing hangs."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import ranks

T = pytest.importorskip("theano.tensor", reason="Theano is not installed in this environment")

import theano  # noqa: E402
import theano.sparse  # noqa: E402

pytestmark = pytest.mark.processes


def before_init():
    import ddl
    import ddl_theano

    x = T.fvector("x")
    for call in (
        lambda: ddl_theano.allreduce(x),
        lambda: ddl_theano.allreduce_arrays([np.ones(2, "f")]),
        lambda: ddl_theano.broadcast_parameters([theano.shared(np.ones(2, "f"))]),
    ):
        with pytest.raises(ddl.InvalidState, match="init"):
            call()
    ddl_theano.init()
    function = theano.function([x], ddl_theano.allreduce(x))
    ddl_theano.shutdown()
    with pytest.raises(ddl.InvalidState, match="init") as caught:
        function(np.ones(2, "f"))
    assert "Apply node" not in str(caught.value)
    ddl_theano.init()
    assert function(np.full(2, ddl_theano.rank(), "f")).tolist() == [0.5, 0.5]


def test_use_before_init_and_after_shutdown():
    ranks.run(2, before_init, initialise=False)


def refusals():
    import ddl
    import ddl_theano

    who = rf"^\[rank {ddl.rank()}/{ddl.size()} host \S+\] allreduce: "
    x, n = T.fvector("x"), T.ivector("n")
    sparse = theano.sparse.csr_matrix("sparse", dtype="float32")
    for given, op, text in (
        (n, ddl.Average, r"variable 0 \(n\) is of type int32, which has no op=Average; floats have"),
        ([x, T.zvector("z")], ddl.Sum, r"variable 1 \(z\) is of type complex128, which has no op=Sum; floats"),
        ([x, sparse], ddl.Sum, r"variable 1 \(sparse\) is a Sparse.*; pass a dense tensor"),
        ([x, None], ddl.Sum, r"variable 1 is a NoneType; pass a dense tensor"),
        (object(), ddl.Sum, r"variable 0 is a object; pass a dense tensor"),
        (theano.gradient.DisconnectedType()(), ddl.Sum, r"variable 0.* is a DisconnectedType; pass a dense"),
        (x, ddl.Adasum, r"variable 0 \(x\) is of type float32, which has no op=Adasum; floats have Average, Sum"),
        (x, "sum", r"variable 0 \(x\) is of type float32, which has no op=sum; floats"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=who + text):
            ddl_theano.allreduce(given, op=op)
    assert ddl_theano.allreduce([]) == []
    with pytest.raises(ddl.InvalidArgument, match=who + "array 1 is of type int64, which has no op=Average"):
        ddl_theano.allreduce_arrays([np.ones(2), np.ones(2, "int64")])


def test_what_cannot_be_combined_is_refused():
    ranks.run(2, refusals)


def every_type_and_operator():
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    expected = {
        ddl.Average: (size - 1) / 2 + 1,
        ddl.Sum: size * (size + 1) / 2,
        ddl.Min: 1,
        ddl.Max: size,
        ddl.Product: np.prod(np.arange(1, size + 1)),
    }
    for dtype in ("float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
        kinds = [T.TensorType(dtype, pattern)() for pattern in ((False,), (False, True), ())]
        arrays = [np.full(shape, rank + 1, dtype) for shape in ((3,), (2, 1), ())]
        for op, value in expected.items():
            if op == ddl.Average and "int" in dtype:
                continue
            results = ddl_theano.allreduce(kinds, op=op)
            assert [variable.type for variable in results] == [variable.type for variable in kinds]
            outputs = theano.function(kinds, results, mode=theano.Mode("py", "fast_compile"))(*arrays)
            by_host = ddl_theano.allreduce_arrays([array.copy() for array in arrays], op=op)
            for array, other, like in zip(outputs, by_host, arrays):
                assert array.dtype == other.dtype == like.dtype and array.shape == other.shape == like.shape
                assert (array == value).all() and (other == value).all()
    # Read-only arrays, and those in pieces, stay as they are; others are overwritten.
    fixed, pieces, own = np.full(3, rank, "f"), np.full((2, 4), rank, "f")[:, ::2], np.full((0, 3), rank, "f")
    fixed.flags.writeable = False
    results = ddl_theano.allreduce_arrays([fixed, pieces, own, np.float32(rank)])
    assert [result.ravel().tolist() for result in results] == [[0.5] * 3, [0.5] * 4, [], [0.5]]
    assert (fixed == rank).all() and (pieces == rank).all() and results[2] is own
    # What is there twice, or a part of another one, is summed once.
    for shape in ((4,), (400, 400)):
        array = np.full(shape, rank + 1, "f")
        for result in ddl_theano.allreduce_arrays(
            [array, array, array[:2], array.T], op=ddl.Sum, name=f"twice {shape}"
        ):
            assert (result == 3).all()
    # Strided inputs are copied.
    x = T.fmatrix("x")
    function = theano.function([x], ddl_theano.allreduce(x.T[::2]))
    matrix = np.arange(6, dtype="f").reshape(2, 3) * (rank + 1)
    assert function(matrix).tolist() == (np.arange(6).reshape(2, 3).T[::2] * 1.5).tolist()


def test_every_type_and_operator():
    ranks.run(2, every_type_and_operator)


def mismatches():
    """They are found before anything is sent, on all ranks; then the same function works."""
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    x, y = T.fvector("x"), T.dvector("y")
    who = rf"^\[rank {rank}/{size} host \S+\] "
    both = ddl_theano.allreduce([x, x * 2], name="weights")
    function = theano.function([x], both)
    with pytest.raises(ddl.InvalidArgument, match=who + r"weights: on rank 0 .*\(2,\); on rank 1 .*\(3,\)") as caught:
        function(np.ones(2 + rank, "f"))
    assert str(caught.value).endswith("Build the same model on all ranks.")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is ddl.InvalidArgument and str(again) == str(caught.value)
    function(np.ones(2, "f"))

    for output, other, text in (
        (ddl_theano.allreduce(x, name="types"), ddl_theano.allreduce(y, name="types"), "float32.*float64"),
        (ddl_theano.allreduce([x], name="number"), ddl_theano.allreduce([x, x], name="number"), "nothing|array 1"),
        (ddl_theano.allreduce(x, name="op"), ddl_theano.allreduce(x, name="op", op=ddl.Sum), "op=Average.*op=Sum"),
        (ddl_theano.allreduce(x, name="this"), ddl_theano.allreduce(x, name="that"), "'this'.*'that'"),
    ):
        function = theano.function([x, y], other if rank else output, on_unused_input="ignore")
        with pytest.raises(ddl.InvalidArgument, match=who + f".*{text}"):
            function(np.ones(2, "f"), np.ones(2))
    with pytest.raises(ddl.InvalidArgument, match=who + r"host: on rank 0 .*\(2,\); on rank 1 .*\(3,\)"):
        ddl_theano.allreduce_arrays([np.ones(2 + rank)], name="host")
    assert theano.function([x], ddl_theano.allreduce(x))(np.full(2, rank, "f")).tolist() == [0.5] * 2


def test_what_differs_between_ranks_is_refused_by_all():
    ranks.run(2, mismatches)


def differs_later():
    import ddl
    import ddl_theano

    rank, size = ddl.rank(), ddl.size()
    x = T.fmatrix("x")
    function = theano.function([x], ddl_theano.allreduce(x, name="metric"))
    for rows in (4, 3, 4, 2):  # all ranks alike
        assert function(np.full((rows, 2), rank, "f")).tolist() == [[0.5] * 2] * rows
    with pytest.raises(ddl.CollectiveMismatch, match=rf"^\[rank {rank}/{size}.*the calls do not match") as caught:
        function(np.ones((2, 2) if rank == 0 else (1, 4), "f"))
    assert "Apply node" not in str(caught.value) and "HINT" not in str(caught.value)


@pytest.mark.faults
def test_what_differs_later_is_not_mixed_up():
    ranks.run(2, differs_later)


def loses_a_rank(way):
    import ddl
    import ddl_theano

    x = T.fvector("x")
    reduced = ddl_theano.allreduce(x, name="gradients")
    mode = "FAST_COMPILE"
    if way == "scan":
        states, _ = theano.scan(lambda before: ddl_theano.allreduce(before), outputs_info=x, n_steps=2)
        reduced = states[-1]
    elif way == "fast run":
        mode = "FAST_RUN"
    function = theano.function([x], reduced, mode=mode)
    run = (lambda value: ddl_theano.allreduce_arrays([value])) if way == "host" else function
    run(np.ones(2, "f"))
    ranks.meet()
    if ddl.rank() == 1:
        os._exit(7)
    with pytest.raises(ddl.PeerLost, match=r"^\[rank [02]/3.*lost rank 1.*") as caught:
        run(np.ones(2, "f"))
    with pytest.raises(ddl.PeerLost, match="lost rank 1"):
        run(np.ones(2, "f"))
    return str(caught.value)


@pytest.mark.faults
@pytest.mark.parametrize("way", ["fast run", "fast compile", "scan", "host"])
def test_a_rank_that_dies_is_named(way):
    first, died, third = ranks.run(3, loses_a_rank, way, may_die=[1])
    assert died == 7
    for text in (first, third):
        assert "\n" not in text and "HINT" not in text
