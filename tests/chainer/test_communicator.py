"""What DDL's communicator for ChainerMN has beyond ChainerMN's own, and what it refuses."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import ranks

cases = pytest.importorskip("chainer_cases", reason="Chainer is not installed here")
chainer, chainermn = cases.chainer, cases.chainermn

pytestmark = pytest.mark.processes


def makes():
    import ddl
    import ddl_chainer

    with pytest.raises(ddl.InvalidArgument, match=r"makes 'ddl', not 'naive'.*chainermn.create_communicator"):
        ddl_chainer.create_communicator("naive")
    with pytest.raises(ddl.InvalidArgument, match=r"with options \['allreduce_grad_dtype'\].*DDL_WIRE"):
        ddl_chainer.create_communicator(allreduce_grad_dtype=np.float16)
    with pytest.raises(ddl.InvalidArgument, match="not an mpi4py communicator"):
        ddl_chainer.create_communicator("ddl", mpi_comm=1)
    assert not ddl.is_initialized()
    comm = ddl_chainer.create_communicator(batched_copy=False)
    assert isinstance(comm, ddl_chainer.DDLCommunicator) and isinstance(comm, chainermn.CommunicatorBase)
    assert (comm.rank, comm.size) == (ddl.rank(), ddl.size())
    comm.set_config("batched_copy")
    assert comm.get_config("batched_copy") is True and comm.get_config() == {"batched_copy": True}
    with comm.config_scope():
        comm.own = 3
    assert comm.get_config("own") == 3 and "own" not in ddl_chainer.create_communicator().get_config()
    with pytest.raises(ValueError, match="Unknown config: nccl"):
        comm.set_config("nccl")
    with pytest.raises(ValueError, match="does not support double buffering"):
        chainermn.create_multi_node_optimizer(chainer.optimizers.SGD(), comm, double_buffering=True)
    return [comm.intra_rank, comm.intra_size, comm.inter_rank, comm.inter_size]


def test_makes_a_communicator():
    hosts = {0: "b", 1: "a", 2: "a", 3: "b"}
    results = ranks.run(4, makes, initialise=False, env_of=lambda rank: {"DDL_HOST_ID": hosts[rank]})
    assert results == [[0, 2, 0, 2], [0, 2, 1, 2], [1, 2, 1, 2], [1, 2, 0, 2]]


def splits():
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    part = comm.split(None if comm.rank == 0 else 1, key=-comm.rank)
    if comm.rank == 0:
        assert part is None
        comm.finalize()  # which leaves the world to others
        return comm.allreduce(np.ones(1)).tolist()
    assert part.allgather(np.array(comm.rank)) == (2, 1)
    part.finalize()
    with pytest.raises(ddl.Error):
        part.allreduce(np.ones(1))
    gone = weakref.ref(part._mail)
    del part
    gc.collect()
    assert gone() is None
    return comm.allreduce(np.ones(1)).tolist()


def test_splits():
    assert ranks.run(3, splits) == [[3.0]] * 3


def all_types():
    """Every type that DDL has; arrays without dimensions, elements, or order."""
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    for kind in ("f2", "f", "d", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"):
        for x in (np.ones((), kind), np.ones((0, 3), kind), np.arange(6).reshape(2, 3).astype(kind).T):
            everybody = comm.allgather(x), comm.alltoall([x] * comm.size), comm.gather(x, 1) or [x] * comm.size
            for result in (*sum(map(list, everybody), []), comm.bcast(x, 1), comm.scatter([x] * comm.size, 1)):
                assert result.dtype == x.dtype and result.shape == x.shape and (result == x).all()
            if comm.rank == 0:
                comm.send(x, 1)
                comm.send([x, x], 1)
            elif comm.rank == 1:
                array, pair = comm.recv(0), comm.recv(0)
                assert array.dtype == x.dtype and (array == x).all() and type(pair) is tuple
                assert [part.shape for part in pair] == [x.shape] * 2 and (pair[1] == x).all()
            if kind != "?":
                assert (comm.allreduce(x) == comm.size * x).all()
    return comm.bcast(np.full(2, comm.rank), 1).tolist()


@pytest.mark.parametrize("size", [2, 4])
def test_all_types(size):
    assert ranks.run(size, all_types) == [[1, 1]] * size


def complex_numbers():
    """They are summed, averaged and sent as pairs of real numbers, and keep their type and shape."""
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    rank, size = comm.rank, comm.size
    for kind in ("F", "D"):
        for base in (np.ones((), kind), np.ones((0, 3), kind), np.arange(6).reshape(2, 3).astype(kind).T):
            x = np.array(base + 1j * rank, kind)
            everybody = [np.array(base + 1j * r, kind) for r in range(size)]
            results = [*zip(comm.allgather(x), everybody), *zip(comm.alltoall([x] * size), everybody)]
            results += [*zip(comm.gather(x, 1) or (), everybody), (comm.bcast(x, 1), everybody[1])]
            results += [(comm.scatter([x] * size, 1), everybody[1]), (comm.allreduce(x), sum(everybody))]
            results += [(comm.bcast_obj(x, root=1), everybody[1])]
            if rank == 0:
                comm.send((x, x), 1)
            elif rank == 1:
                results += [(answer, everybody[0]) for answer in comm.recv(0)]
            mean = x.copy()
            comm._multi_node_mean(None, mean)
            for result, other in (*results, (mean, sum(everybody) / size)):
                assert result.dtype == kind and result.shape == x.shape and (result == other).all()
        for shape in ((2, 3), (300, 300)):  # together with others, and sent from where it is
            model = chainer.Link()
            with model.init_scope():
                model.W, model.b = (chainer.Parameter(np.full(s, rank * 1j, kind)) for s in (shape, ()))
            model.add_persistent("state", np.full(shape, rank * 2j, kind))
            comm.bcast_data(model)
            assert (model.W.array == 0).all() and model.b.array == 0
            ddl_chainer.broadcast_parameters(model, root=1)
            assert (model.state == 2j).all()
            for parameter in (model.W, model.b):
                parameter.grad = np.full(parameter.shape, rank + 2j, kind)
            comm.multi_node_mean_grad(model)
            for parameter in (model.W, model.b):
                assert parameter.grad.dtype == kind and (parameter.grad == (size - 1) / 2 + 2j).all()
    for call in (comm.allreduce, comm.allgather, lambda x: comm.send(x, 1 - rank)):
        with pytest.raises(ddl.InvalidArgument, match="arrays of type complex256 cannot be"):
            call(np.ones(1, "G"))
    return True


@pytest.mark.parametrize("transport", ["shared", "hosts"])
def test_complex_numbers(transport):
    hosts = {"env_of": lambda rank: {"DDL_HOST_ID": "ab"[rank]}} if transport == "hosts" else {}
    assert ranks.run(2, complex_numbers, **hosts) == [True] * 2


def tags():
    import ddl
    import ddl_chainer

    comm, other = ddl_chainer.create_communicator(), ddl_chainer.create_communicator()
    if comm.rank == 0:
        big = np.arange(1 << 20)
        comm.send(np.ones(2), 1, tag=3)
        other.send_obj(cases.Odd(4), 1, tag=4)
        comm.send_obj(big, 1, tag=5)
        for call in (lambda: comm.send(big, 1, tag=-1), lambda: comm.send_obj(1, 1, tag=-2)):
            with pytest.raises(ddl.InvalidArgument, match=r"^\[rank 0/2.* send: tag=-\d must be 0 or more"):
                call()
        with pytest.raises(ddl.InvalidArgument, match="cannot send to itself"):
            comm.send_obj(1, 0)
        with pytest.raises(ddl.InvalidArgument, match=r"\[rank 0/2.* send: arrays of type float128 cannot be"):
            comm.send((big, np.ones(2, "g")), 1)
        with pytest.raises(ddl.InvalidArgument, match="cannot pickle the object"):
            comm.send_obj(lambda: 0, 1)
        return comm.recv_obj(1)
    assert comm.recv_obj(0, tag=5)[-1] == (1 << 20) - 1  # what comes before it is kept, for both
    with pytest.raises(
        ddl.InvalidArgument, match=r"\[rank 1/2.* recv_obj: rank 0 has sent an array with tag 3; recv r"
    ):
        other.recv_obj(0, tag=3)
    with pytest.raises(ddl.InvalidArgument, match=r" recv: rank 0 has sent an object with tag 4; recv_obj returns it"):
        comm.recv(0, tag=4)
    assert other.recv(0, tag=3).tolist() == [1, 1] and comm.recv_obj(0).number == 4
    comm.send_obj("end", 0)
    return "end"


def test_tags():
    assert ranks.run(2, tags) == ["end"] * 2


def mistakes():
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    me = rf"^\[rank {comm.rank}/2.*"
    for verb, x in (
        ("allreduce", {1.0}),
        ("allgather", chainer.Variable(np.ones(1))),
        ("gather", None),
        ("bcast", "x"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=f"{me}{verb}: a {type(x).__name__} is no array"):
            getattr(comm, verb)(x, *([comm.rank] if verb == "bcast" else []))
    for verb in ("alltoall", "scatter"):
        root = [comm.rank] if verb == "scatter" else []
        with pytest.raises(
            ddl.InvalidArgument, match=f"{me}{verb}: needs .* of 2 ranks, not 3 of .'float64'. in a tuple"
        ):
            getattr(comm, verb)((np.ones(1),) * 3, *root)
        with pytest.raises(ddl.InvalidArgument, match=f"{me}{verb}: .* not 2 of .'float32', 'float64'. in a list"):
            getattr(comm, verb)([np.ones(1), np.ones(1, "f")], *root)
        with pytest.raises(ddl.InvalidArgument, match=f"{me}{verb}: .* not 0 of .* in a int"):
            getattr(comm, verb)(3, *root)
        with pytest.raises(ddl.InvalidArgument, match=f"{me}{verb}: arrays of type float128 cannot be"):
            getattr(comm, verb)([np.ones(1, "g")] * 2, *root)
    with pytest.raises(ddl.InvalidArgument, match="root=2 is no rank"):
        comm.bcast_obj(1, root=2)
    with pytest.raises(ddl.InvalidArgument, match="rank 0 has float64 .*rank 1 has float32"):  # on both
        comm.allgather(np.ones(2, "d" if comm.rank == 0 else "f"))
    for verb in ("gather_obj", "allreduce_obj", "bcast_obj"):
        with pytest.raises(ddl.InvalidArgument, match="rank 0.*: cannot pickle the object"):  # on both
            getattr(comm, verb)((lambda: 0) if comm.rank == 0 else 0)
    assert comm.allreduce(np.ones(1)) == 2
    with pytest.raises(ddl.CollectiveMismatch, match="do not match: rank . called .* rank . called"):
        comm.allreduce(np.ones(1 + comm.rank))


def test_mistakes_are_refused():
    ranks.run(2, mistakes)


def models():
    import ddl
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    model = chainer.Chain(a=chainer.links.Linear(3, 2), b=chainer.links.BatchNormalization(2))
    comm.bcast_data(model)
    values = np.arange(6.0, dtype="f").reshape(2, 3)
    for gradient in (np.asfortranarray(values + comm.rank), np.broadcast_to(values[0] + comm.rank, (2, 3))):
        model.cleargrads()
        model.a.W.grad = gradient  # it cannot be reduced where it is
        expected = np.array(gradient) - comm.rank + (comm.size - 1) / 2
        with pytest.warns(DeprecationWarning, match="allreduce_grad"):
            comm.allreduce_grad(model)
        assert (model.a.W.grad == expected).all() and model.a.b.grad is None
        comm.multi_node_mean_grad(model, zero_fill=True)
        assert (model.a.W.grad == expected).all() and model.a.b.grad.tolist() == [0, 0]
    model.a.W.array = np.asfortranarray(values + comm.rank)
    comm.broadcast_data(model)
    assert (model.a.W.array == values).all()
    transposed = np.asfortranarray(values + comm.rank)
    comm._multi_node_mean(None, transposed)
    assert (transposed == values + (comm.size - 1) / 2).all()

    last = comm.size - 1
    model.b.avg_mean[...] = model.a.W.array[...] = comm.rank
    ddl_chainer.broadcast_parameters(model, root=last)
    assert (model.a.W.array == last).all() and (model.b.avg_mean == last).all()
    half = ddl.split(comm.rank % 2)
    model.a.W.array[...] = comm.rank
    ddl_chainer.broadcast_parameters(model, communicator=half)
    assert (model.a.W.array == comm.rank % 2).all()

    different = chainer.Chain(a=chainer.links.Linear(3, 2 + comm.rank))
    for call in (ddl_chainer.broadcast_parameters, comm.bcast_data):
        with pytest.raises(ddl.InvalidArgument, match=r"on rank 0 there is .*\(2,\).*on rank 1 .*\(3,\)"):
            call(different)
    different.a.cleargrads()
    with pytest.raises(ddl.InvalidArgument, match="gradients: on rank 0 there is"):
        comm.multi_node_mean_grad(different, zero_fill=True)
    return comm.allreduce(np.ones(1)).tolist()


@pytest.mark.parametrize("size", [2, 4])
def test_models(size):
    assert ranks.run(size, models) == [[size]] * size


def shares_memory():
    """Chainer gives the addends of a sum one array, or views of it, as their gradients."""
    import ddl_chainer

    comm = ddl_chainer.create_communicator()
    for side in (2, 300):  # together with others, and sent from where it is
        a, b = (chainer.Parameter(np.zeros(shape, "f")) for shape in ((side, side), (side * side,)))
        model = chainer.Link()
        with model.init_scope():
            model.a, model.b = a, b
        model.cleargrads()
        chainer.functions.sum((a + b.reshape(side, side) + comm.rank) ** 2).backward()
        assert np.shares_memory(a.grad, b.grad)
        comm.multi_node_mean_grad(model)
        assert (a.grad == 2.0).all() and (b.grad == 2.0).all() and not np.shares_memory(a.grad, b.grad)
    return comm.inter_size


@pytest.mark.parametrize("hosts", ["aaa", "abc"])
def test_gradients_that_share_memory(hosts):
    assert ranks.run(3, shares_memory, env_of=lambda rank: {"DDL_HOST_ID": hosts[rank]}) == [len(set(hosts))] * 3


def without_mpi4py():
    """mpi4py is hidden, as where it is not installed."""
    import sys

    import ddl_chainer

    sys.modules["mpi4py"] = None
    with pytest.raises(ImportError):
        chainermn.links.MultiNodeBatchNormalization(3, None)
    comm = ddl_chainer.create_communicator()
    assert sys.modules["mpi4py"] is None and "mpi4py.MPI" not in sys.modules
    cases.batch_normalization(comm)
    with pytest.raises(ImportError, match="ChainerMN requires mpi4py"):
        chainermn.create_communicator("naive")
    return "mpi4py.MPI" in sys.modules


def test_works_without_mpi4py():
    assert ranks.run(2, without_mpi4py) == [False, False]
