"""A ``Compressor`` of the user's own in ``DistributedOptimizer``: what it returns is reduced, in its own type."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List

import pytest
import ranks

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.processes


class Doubled:
    """Loses nothing: a training with it has the same bits as one without, where sums are exact."""

    @staticmethod
    def compress(tensor: Any) -> Any:
        seen.append(tensor.dtype)
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return 2 * tensor.to(wide).reshape(-1), tensor  # another shape and type; the context is the gradient itself

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return (tensor / 2).to(ctx.dtype).reshape(ctx.shape)


class Bits:
    """Loses nearly everything: reduced as whole numbers; class methods and an object of it will do."""

    kept = 4.0

    @classmethod
    def compress(cls, tensor: Any) -> Any:
        return (tensor * cls.kept).to(torch.int32), None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor.to(torch.float32) / cls.kept


class Wrong(Bits):
    """Does not return a pair."""

    @classmethod
    def compress(cls, tensor: Any) -> Any:
        return tensor


class Flat(Bits):
    """Returns another shape."""

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        return tensor.reshape(-1)


seen: List[Any] = []


class Model(torch.nn.Module):
    """Parameters of three types; one that only rank 1 uses, one that nobody does, one that is frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        self.single = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.short = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
        self.pairs = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.of_rank_1 = torch.nn.Parameter(torch.ones(5))
        self.of_nobody = torch.nn.Parameter(torch.ones(5))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, rank: int, step: int) -> Any:
        loss = (self.single.t() * (4 * step + 8 * rank)).sum() + (self.short.float() * 4 * (1 + rank)).sum()
        loss = loss + (self.pairs * (4 + 8j * rank)).sum().real + (self.frozen * 4).sum()
        return loss + (self.of_rank_1 * 16).sum() if rank == 1 else loss


def trained(**options: Any) -> Dict[str, Any]:
    import ddl_torch as hvd

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
    for step in range(4):
        optimizer.zero_grad()
        for _ in range(options.get("backward_passes_per_step", 1)):
            model(hvd.rank(), step).backward()
        optimizer.step()
        assert model.of_nobody.grad is None
        model.frozen.requires_grad_(step >= 1)
    return {name: value.detach() for name, value in model.state_dict().items()}


def trains_alike() -> None:
    import ddl_torch as hvd

    kinds: List[Dict[str, Any]] = [{}, {"bucket_bytes": 16}, {"op": "sum"}, {"gradient_predivide_factor": 2.0}]
    kinds += [{"backward_passes_per_step": 2}]
    for kind, overlap in itertools.product(kinds, (False, True)):
        plain, own = (trained(overlap=overlap, compression=how, **kind) for how in (None, Doubled))
        assert seen
        seen.clear()
        assert all(torch.equal(plain[name], own[name]) for name in plain), (kind, overlap)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=Bits())
    (weight * torch.tensor([0.3, 0.6, 1.0 + hvd.rank()])).sum().backward()
    optimizer.step()
    assert weight.tolist() == [-0.25, -0.5, -1.5]  # quarters, averaged as whole numbers and truncated


def mistakes() -> List[str]:
    import ddl_torch as hvd

    weight, texts = torch.nn.Parameter(torch.zeros(2, 2)), []
    for kind in (Wrong, Flat):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=kind)
        try:
            weight.sum().backward()
            optimizer.step()
        except hvd.InvalidArgument as error:
            texts.append(str(error))
        weight.grad = None
    for options in ({"op": hvd.Adasum}, {"check": 1}, {"deterministic": True}):
        with pytest.raises(hvd.InvalidArgument, match="compression='Bits'"):
            hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=Bits, **options)
    other = Bits if hvd.rank() == 0 else Doubled
    with pytest.raises(hvd.InvalidArgument, match=r"on rank 0 .*Bits.*; on rank 1 .*Doubled"):
        hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), compression=other)
    return texts


def everything() -> List[str]:
    trains_alike()
    return mistakes()


def test_a_compressor_of_ones_own_trains_and_is_checked() -> None:
    for texts in ranks.run(2, everything):
        assert len(texts) == 2
        assert "compress returned a Tensor of shape (2, 2) for parameter 'group 0 parameter 0'" in texts[0]
        assert "decompress returned a Tensor of shape (4,) for parameter 'group 0 parameter 0'" in texts[1]
