"""What goes wrong comes out of ``step`` as DDL's error, on all ranks; nothing hangs."""

from __future__ import annotations

import os
import signal

import caffe_solvers
import pytest
import ranks

from ddl import errors

caffe = pytest.importorskip("caffe")

pytestmark = pytest.mark.processes


def solver_of(folder, **how):
    import ddl
    import ddl_caffe

    solver = caffe.get_solver(caffe_solvers.write(f"{folder}/{ddl.rank()}", inputs=caffe_solvers.memory(4), **how))
    ddl_caffe.set_input_arrays(solver, *caffe_solvers.arrays())
    return solver


def refuses(folder):
    import ddl
    import ddl_caffe

    with pytest.raises(ddl.InvalidState, match="init"):
        ddl_caffe.attach(None)
    ddl.init()
    rank = ddl.rank()
    early = solver_of(folder)
    with pytest.raises(
        ddl.InvalidArgument, match=rf"^\[rank {rank}/2 host \S+\] attach: Caffe takes this for solver 0 of 1.*init"
    ):
        ddl_caffe.attach(early)
    ddl_caffe.init()
    solver = solver_of(folder)
    with pytest.raises(ddl.InvalidArgument, match="attach: a Net is no solver of Caffe"):
        ddl_caffe.attach(solver.net)
    ddl_caffe.attach(solver)
    with pytest.raises(ddl.InvalidArgument, match="attached already"):
        ddl_caffe.attach(solver)
    with pytest.raises(ddl.InvalidState, match=r"solve: .*use solver.step"):
        solver.solve()
    solver.step(1)


def test_what_attach_refuses(tmp_path):
    ranks.run(2, refuses, str(tmp_path), initialise=False)


def differ(folder):
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    rank = ddl.rank()
    for odd, text in (
        ({"kind": "shared"}, r"broadcast: on rank 0 there is array 0 of float32 .*on rank 1 array 0"),
        ({"solver": "Nesterov"}, r"attach: on rank 0 there is a SGDSolver, .*on rank 1 a NesterovSolver"),
        ({"lr": 0.2}, r"base_lr 0.1.*base_lr 0.2.*Make the same solver on all ranks"),
        ({"more": "iter_size: 2"}, r"on rank 0 there is iter_size 1; on rank 1 iter_size 2"),
    ):
        solver = solver_of(folder, **(odd if rank else {}))
        ddl_caffe.attach(solver)
        with pytest.raises(ddl.InvalidArgument, match=rf"^\[rank {rank}/2 host \S+\] .*{text}"):
            solver.step(1)
    solver = solver_of(folder)
    ddl_caffe.attach(solver)
    solver.step(2)  # nothing is broken


def test_ranks_with_different_solvers(tmp_path):
    ranks.run(2, differ, str(tmp_path), initialise=False)


def loses_a_rank(folder, where, overlap):
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    solver = solver_of(folder)
    ddl_caffe.attach(solver, overlap=overlap, bucket_bytes=1)

    def dies(*_):
        if ddl.rank() == 1 and solver.iter == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    net = solver.net
    if where == "forward":
        net.after_forward(dies)
    else:
        net.before_backward(lambda index: dies() if index == 1 else None)  # with overlap, a bucket is under way
    with pytest.raises(ddl.PeerLost, match="lost rank 1") as caught:
        solver.step(6)
    assert str(caught.value).startswith(f"[rank {ddl.rank()}/3")
    assert solver.iter in (2, 3)  # 2: this rank was still in the last average of step 2 when it heard of the death
    with pytest.raises(ddl.CommunicatorError, match="lost rank 1"):
        solver.step(1)
    return type(caught.value).__name__


@pytest.mark.faults
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "afterwards"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_rank_that_is_killed_is_named(where, overlap, tmp_path):
    first, died, third = ranks.run(3, loses_a_rank, str(tmp_path), where, overlap, initialise=False, may_die=[1])
    assert died == -signal.SIGKILL and first == third == errors.PeerLost.__name__


def raises_in_a_callback(folder):
    import ddl
    import ddl_caffe

    ddl_caffe.init()
    solver = solver_of(folder)
    ddl_caffe.attach(solver)
    solver.step(1)

    def mistake():
        raise KeyError("mine")

    if ddl.rank() == 1:
        solver.add_callback(mistake, lambda: None)
        with pytest.raises(KeyError, match="mine"):
            solver.step(1)
        ddl.shutdown()
    else:
        with pytest.raises(ddl.PeerLost, match="rank 1"):
            solver.step(1)


@pytest.mark.faults
def test_a_rank_that_fails_by_itself(tmp_path):
    ranks.run(2, raises_in_a_callback, str(tmp_path), initialise=False)
