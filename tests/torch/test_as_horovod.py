"""What scripts for Horovod do beside the usual: compressors of their own, errors by class, models without training."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import pytest
import ranks

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.processes


def refused(call: Any) -> Any:
    import ddl_torch as hvd

    try:
        call()
    except hvd.Error as error:
        return error
    raise AssertionError("it was accepted")


def names_and_roots() -> None:
    import ddl_torch as hvd

    rank, size = hvd.rank(), hvd.size()
    x, total = torch.full((size,), float(rank)), float(size * (size - 1) / 2)
    summed = [
        *(hvd.allreduce(x, op="sum"), hvd.allreduce_(x.clone(), op="SUM"), hvd.allreduce_async(x, op="sum").wait()),
        *(hvd.grouped_allreduce([x], op="sum")[0], hvd.grouped_allreduce_async([x], op="sum").wait()[0]),
        *(hvd.reducescatter(x, op="sum"), hvd.reducescatter_async(x, op="sum").wait()),
        *(hvd.grouped_reducescatter([x], op="sum")[0], hvd.grouped_reducescatter_async([x], op="sum").wait()[0]),
        hvd.prepare_allreduce(x.clone(), op="sum")(),
        hvd.sparse_allreduce_async(x.to_sparse(), "sparse", "sum")().to_dense(),
    ]
    assert all(torch.equal(tensor, torch.full_like(tensor, total)) for tensor in summed)
    root = size - 1
    reduced, gathered = hvd.reduce(x, root, op="sum"), hvd.gather(x[:1], root)
    if rank == root:
        assert float(reduced[0]) == total and gathered.tolist() == list(range(size))
    else:
        assert reduced is None and gathered is None
    assert hvd.scatter(torch.arange(size) if rank == root else None, root).tolist() == [rank]
    assert hvd.broadcast(x, root).tolist() == [root] * size
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], op="sum")
    (weight * (1 + rank)).sum().backward()
    optimizer.step()
    assert weight.item() == 1 - (total + size)


def errors() -> List[Tuple[bool, str]]:
    import ddl_torch as hvd

    x = torch.ones(4)
    return [
        (
            all(isinstance(error, kind) for kind in (RuntimeError, NotImplementedError, ValueError)),
            f"{type(error).__name__}: {error}",
        )
        for error in (
            refused(lambda: hvd.reducescatter(x, op=hvd.Adasum)),
            refused(lambda: hvd.reducescatter(x.int(), op=hvd.Adasum)),
            refused(lambda: hvd.reducescatter_async(x, op="adasum")),
            refused(lambda: hvd.grouped_reducescatter([x], op=hvd.Adasum)),
            refused(lambda: hvd.sparse_allreduce_async(x.to_sparse(), "x", hvd.Adasum)),
        )
    ]


def nothing_to_train() -> None:
    import ddl_torch as hvd

    class Nothing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    kinds: List[Dict[str, Any]] = [{}, {"check": 1}, {"overlap": True}, {"op": hvd.Adasum}, {"compression": "int8"}]
    kinds += [{"num_groups": 2}, {"deterministic": True}, {"backward_passes_per_step": 2}, {"compression": "auto"}]
    kinds += [{"overlap_update": True}, {"compression": "powersgd"}, {"sparse_as_dense": True}]
    for model in (frozen, Nothing()):
        hvd.broadcast_parameters(model.state_dict(), 0)
        for kind in kinds:
            groups = [{"params": list(model.parameters())}]  # torch takes an empty group, but no empty list of groups
            optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **kind)
            hvd.broadcast_optimizer_state(optimizer, 0)
            weights = [p.clone() for p in model.parameters()]
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(3, 2))
                optimizer.step()
                optimizer.step(lambda: torch.tensor(1.0))
            assert all(map(torch.equal, weights, model.parameters())), kind
            if "op" not in kind:
                optimizer.synchronize()
    frozen.weight.requires_grad_()  # now there is something
    last = hvd.DistributedOptimizer(torch.optim.SGD(frozen.parameters(), lr=1.0), frozen.named_parameters())
    before = frozen.weight.detach().clone()
    (frozen(torch.ones(1, 2)).sum() * hvd.rank()).backward()
    last.step()
    assert torch.allclose(before - frozen.weight, torch.full((2, 2), (hvd.size() - 1) / 2))


def a_compressor_of_ones_own() -> None:
    import ddl_torch as hvd

    class Halves(hvd.compression.Compressor):
        """Every other element, as bfloat16."""

        @staticmethod
        def compress(tensor: Any) -> Any:
            return tensor[::2].bfloat16(), tensor

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            result = torch.zeros_like(ctx)
            result[::2] = tensor.to(ctx.dtype)
            return result

    x = torch.arange(6.0) + hvd.rank()
    wanted = torch.tensor([0.5, 0, 2.5, 0, 4.5, 0])
    for kind in (Halves, Halves()):
        assert torch.equal(hvd.allreduce(x, compression=kind), wanted)
        assert torch.equal(hvd.grouped_allreduce([x, x], compression=kind)[1], wanted)
    fp16 = hvd.compression.FP16Compressor
    assert hvd.allreduce(torch.tensor([1 / 3]), compression=fp16).item() == torch.tensor([1 / 3]).half().float().item()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    assert hvd.DistributedOptimizer(optimizer, compression=fp16).compression == "fp16"


def everything() -> List[Tuple[bool, str]]:
    import ddl_torch as hvd

    hvd.init()
    assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[0, 1], mpi_comm=None)"
    assert hvd.is_homogeneous()
    names_and_roots()
    nothing_to_train()
    a_compressor_of_ones_own()
    return errors()


@pytest.mark.slow
def test_what_scripts_for_horovod_do() -> None:
    for rank, answers in enumerate(ranks.run(2, everything)):
        assert len(answers) == 5
        for right, text in answers:
            assert right and text.startswith(f"NotSupported: [rank {rank}/2 host ") and "op=ddl.Adasum" in text, text
