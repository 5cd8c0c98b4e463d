"""What cannot be sent is refused before anything is submitted, by every verb: the next verb works as if nothing was."""

from __future__ import annotations

import pytest
import ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of rare kinds of tensors


class Wrapper(torch.Tensor):
    """A tensor that has a shape, and no memory."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (4,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return Wrapper()


class Subclass(torch.Tensor):
    """A tensor that has memory."""


def unsendable():
    """Return tensors of no verb, by what the error says of them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return [
        (torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8), r"quantised \(torch.quint8\)"),
        (torch.ones(4, device="meta"), "is on meta"),
        (torch.eye(4).to_sparse_csr(), "is sparse"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is nested"),
        (torch._efficientzerotensor(4), "has no memory of its own.*tensor.clone"),
        (torch._to_functional_tensor(torch.ones(4)), "has no memory of its own"),
        (FakeTensorMode().from_tensor(torch.ones(4)), "FakeTensor has no memory of its own|is on meta"),
        (Wrapper(), "Wrapper has no memory of its own"),
    ]


def refused(verbs, error):
    ddl = verbs
    r = ddl.rank()
    calls = [
        *(lambda t, op=op: ddl.allreduce(t, op=op) for op in (ddl.Average, ddl.Sum, ddl.Max, ddl.Adasum)),
        *(lambda t, n=name: getattr(ddl, n)(t) for name in ("allreduce_", "broadcast", "broadcast_", "allgather")),
        *(lambda t, n=name: getattr(ddl, n)(t) for name in ("alltoall", "reducescatter", "reduce", "gather")),
        *(lambda t, n=name: getattr(ddl, n)(t) for name in ("allreduce_async", "broadcast_async_", "allgather_async")),
        *(lambda t, n=name: getattr(ddl, n)(t) for name in ("alltoall_async", "reducescatter_async", "gather_async")),
        *(lambda t, n=name: getattr(ddl, n)([torch.ones(2), t]) for name in ("grouped_allreduce", "grouped_allgather")),
        *(lambda t, n=name: getattr(ddl, n)([torch.ones(2), t]) for name in ("grouped_reducescatter",)),
        lambda t: ddl.allreduce(t, prescale_factor=0.5, name="a name"),
        lambda t: ddl.allreduce(t, communicator=ddl.world()),
        lambda t: ddl.allreduce(t, compression=ddl.Compression.fp16),
        lambda t: ddl.prepare_allreduce(t),
        lambda t: ddl.send(t, 1 - r),
        lambda t: ddl.recv(t, 1 - r),
    ]
    for tensor, text in unsendable():
        for call in calls:
            with pytest.raises(error, match=text):
                call(tensor)
        works(ddl)
    return len(calls)


def works(ddl):
    assert ddl.allreduce(torch.ones(3), op=ddl.Sum).tolist() == [ddl.size()] * 3


def every_verb():
    import ddl_torch as ddl

    refused(ddl, ddl.InvalidArgument)
    for transform in (torch.vmap, torch.func.functionalize):
        for verb in (ddl.allreduce, ddl.allgather, ddl.broadcast_, lambda t: ddl.allreduce_async(t).wait()):
            with pytest.raises(ddl.InvalidArgument, match="has no memory of its own.*as under torch.vmap"):
                transform(verb)(torch.ones(2, 3))
            works(ddl)
    for name in ("prescale_factor", "postscale_factor"):
        for verb in (ddl.allreduce, ddl.reducescatter, ddl.allreduce_async_):
            for factor in (1j, "two", torch.ones(2)):
                with pytest.raises(ddl.InvalidArgument, match=f"{name}=.* is no real number"):
                    verb(torch.ones(4), **{name: factor})
            works(ddl)


def test_every_verb(tmp_path) -> None:
    ranks.run(2, every_verb)


def rare_types():
    """Types that torch itself hardly knows: they are moved as they are, or refused; never summed."""
    import ddl_torch as ddl

    names = ("bits16", "bits8", "int4", "uint1", "float4_e2m1fn_x2", "float8_e8m0fnu", "float8_e4m3fn")
    for dtype in (getattr(torch, name) for name in names if hasattr(torch, name)):
        tensor = torch.zeros(4, dtype=torch.uint16 if dtype.itemsize == 2 else torch.uint8).view(dtype)
        for op in (ddl.Sum, ddl.Average, ddl.Max):
            for verb in (ddl.allreduce, ddl.reducescatter, ddl.reduce, ddl.allreduce_async_):
                with pytest.raises(ddl.InvalidArgument, match=f"{dtype} can be moved, but not added up"):
                    verb(tensor, op=op)
        assert ddl.allgather(tensor).dtype == dtype
        assert ddl.alltoall(tensor).dtype == dtype
        works(ddl)


def test_rare_types() -> None:
    if not hasattr(torch, "uint16"):
        pytest.skip("this version of torch has few types")
    ranks.run(2, rare_types)


def subclasses():
    import ddl_torch as ddl

    for tensor in (torch.ones(4).as_subclass(Subclass), torch.nn.Parameter(torch.ones(4))):
        assert ddl.allreduce(tensor.detach(), op=ddl.Sum).tolist() == [2.0] * 4
        assert ddl.allgather(tensor).tolist() == [1.0] * 8
        own = tensor.detach().clone()
        assert ddl.allreduce_(own, op=ddl.Sum).tolist() == own.tolist() == [2.0] * 4


def test_subclasses_with_memory_are_sent() -> None:
    ranks.run(2, subclasses)
