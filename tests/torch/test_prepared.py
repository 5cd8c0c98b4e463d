"""``prepare_allreduce`` of torch tensors: the values of ``allreduce_`` each time, and autograd is told of each."""

from __future__ import annotations

import gc
import weakref

import pytest
import ranks

torch = pytest.importorskip("torch")

KINDS = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint8", "complex64"]


def again_and_again():
    import ddl_torch as ddl

    rank, size = ddl.rank(), ddl.size()
    calls = 0
    for kind in KINDS:
        for count, often in ((1, 50), (7, 20), (70_001, 3)):
            x = torch.zeros(count, dtype=getattr(torch, kind))
            step, mean = ddl.prepare_allreduce(x, op=ddl.Sum), ddl.prepare_allreduce(x)
            for number in range(often):
                x.fill_(rank + number % 5)
                assert step() is x
                total = size * (number % 5) + sum(range(size))
                assert torch.equal(x, torch.full_like(x, total)), (kind, count, number, x)
                x.fill_(size * (rank + number % 5))
                assert mean() is x
                assert torch.equal(x, torch.full_like(x, total)), (kind, count, number, x)
                if number % 7 == 0:
                    assert ddl.allreduce(torch.ones(3), op=ddl.Sum).tolist() == [size] * 3
                calls += 2
    return calls


def with_autograd():
    """A parameter that needs a gradient, a gradient, and a value that autograd has kept."""
    import ddl_torch as ddl

    parameter = torch.nn.Parameter(torch.full((4, 3), float(ddl.rank() + 1)))
    step = ddl.prepare_allreduce(parameter, op=ddl.Sum)
    assert step() is parameter and parameter.requires_grad and parameter.grad_fn is None
    assert torch.equal(parameter.detach(), torch.full((4, 3), 3.0))

    (parameter * (ddl.rank() + 1)).sum().backward()
    reduce_gradient = ddl.prepare_allreduce(parameter.grad)
    assert reduce_gradient() is parameter.grad and torch.equal(parameter.grad, torch.full((4, 3), 1.5))
    parameter.grad.zero_().add_(ddl.rank())
    reduce_gradient()
    assert torch.equal(parameter.grad, torch.full((4, 3), 0.5))

    versions = []
    x = torch.ones(3, requires_grad=True)
    y = x.exp()
    step = ddl.prepare_allreduce(y)
    assert torch.equal(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], y), "preparing alone writes nothing"
    for _ in range(2):
        versions.append(y._version)
        step()
    assert versions[0] < versions[1] < y._version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def lifetimes_and_parts():
    import ddl_torch as ddl

    x = torch.full((1000,), float(ddl.rank()))
    step = ddl.prepare_allreduce(x, op=ddl.Max)
    seen, place = weakref.ref(x), x.data_ptr()
    del x
    gc.collect()
    kept = step()
    assert kept is seen() and kept.data_ptr() == place and kept.tolist() == [float(ddl.size() - 1)] * 1000
    del step, kept
    gc.collect()
    assert seen() is None

    half = ddl.split(ddl.rank() % 2)
    y = torch.ones(5)
    prepared = ddl.prepare_allreduce(y, op=ddl.Sum, communicator=half)
    assert prepared() is y and y.tolist() == [float(half.size)] * 5
    rows = torch.zeros(6, 4)
    rows[2:4] = ddl.rank()
    part = ddl.prepare_allreduce(rows[2:4], op=ddl.Sum)
    part()
    total = float(sum(range(ddl.size())))
    assert rows[2:4].unique().tolist() == [total] and rows[:2].sum() == rows[4:].sum() == 0


def refusals():
    import ddl_torch as ddl

    wide = torch.zeros(4, 4)
    calls = [
        (lambda: ddl.prepare_allreduce(wide.t()[:2]), "not contiguous"),
        (lambda: ddl.prepare_allreduce(wide[:, :2]), r"strides \(4, 1\)"),
        (lambda: ddl.prepare_allreduce([1.0]), "a list is no torch tensor"),
        (lambda: ddl.prepare_allreduce(None), "NoneType"),
        (lambda: ddl.prepare_allreduce(torch.zeros(2, device="meta")), "is on meta"),
        (lambda: ddl.prepare_allreduce(torch.zeros(2, dtype=torch.complex64), op=ddl.Max), "complex"),
        (lambda: ddl.prepare_allreduce(torch.tensor([True])), "no average"),
    ]
    for call, message in calls:
        with pytest.raises(ddl.InvalidArgument, match=message):
            call()
    step = ddl.prepare_allreduce(torch.ones(2))
    with pytest.raises(TypeError):
        step(1)
    assert step().tolist() == [1.0, 1.0]


def everything():
    calls = again_and_again()
    with_autograd()
    lifetimes_and_parts()
    refusals()
    return calls


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("shm", ["1", "0"])
def test_prepared(shm):
    assert ranks.run(2, everything, env={"OMP_NUM_THREADS": "1", "DDL_SHM": shm}) == [2 * 73 * len(KINDS)] * 2


@pytest.mark.processes
def test_three_ranks():
    assert ranks.run(3, again_and_again, env={"OMP_NUM_THREADS": "1"}) == [2 * 73 * len(KINDS)] * 3


def with_other_memory():
    """What was prepared would go on with the old memory."""
    import ddl_torch as ddl

    x = torch.ones(3)
    step = ddl.prepare_allreduce(x, op=ddl.Sum, name="totals")
    step()
    x.share_memory_()
    with pytest.raises(ddl.InvalidState, match="the memory of the tensor 'totals' is another one now .* again"):
        step()
    assert x.tolist() == [2.0] * 3
    ddl.prepare_allreduce(x, op=ddl.Sum)()
    return x.tolist()


def test_a_tensor_with_other_memory_is_refused():
    assert ranks.run(2, with_other_memory) == [[4.0] * 3] * 2
