"""``torch.compile`` around what averages by the backend "ddl": each way that gloo goes, with gloo's result.

What is compiled is run by PyTorch as it is (``backend="eager"``): what could go wrong is what TorchDynamo meets.
"""

from __future__ import annotations

import pytest
import ranks
from process_groups import begin

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.processes

STEPS = 3


def compiled(function):
    return torch.compile(function, backend="eager")


#: What would end a group of gloo if it went: that waits for gloo's thread and holds the GIL, for which the thread may
#: wait, as it lets go of tensors (torch 2.13). A rank of a test ends without looking at it.
KEPT = []


def ddp(model, group, mesh, **options):
    from torch.nn.parallel import DistributedDataParallel

    KEPT.append(DistributedDataParallel(model, process_group=group, **options))
    return KEPT[-1]


def around_ddp(model, group, mesh):
    return compiled(ddp(model, group, mesh))


def by_ddps_own_method(model, group, mesh):
    wrapped = ddp(model, group, mesh)
    wrapped.compile(backend="eager")
    return wrapped


def static_graph(model, group, mesh):
    return compiled(ddp(model, group, mesh, static_graph=True))


def inside_ddp(model, group, mesh):
    return ddp(compiled(model), group, mesh)


def with_buffers(model, group, mesh):
    """DDP broadcasts these in each forward pass."""
    model.register_buffer("seen", torch.zeros(3))
    return compiled(ddp(model, group, mesh))


def replicated(model, group, mesh):
    from torch.distributed._composable.replicate import replicate

    return compiled(replicate(model, process_group=group))


def sharded(model, group, mesh):
    from torch.distributed.fsdp import fully_shard

    return compiled(fully_shard(model, mesh=mesh))


def parallel_tensors(model, group, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return compiled(parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


WAYS = [around_ddp, by_ddps_own_method, static_graph, inside_ddp, with_buffers, replicated, sharded, parallel_tensors]


def weights(model):
    parameters = [p.detach() for p in model.parameters()]
    return torch.cat([(p.full_tensor() if hasattr(p, "full_tensor") else p).reshape(-1) for p in parameters])


def trained(way, rank, backend, *, whole_step=False):
    """Train a few steps with a group of ``backend``; the same batch on all ranks for tensors that are parallel."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    group = dist.new_group([0, 1], backend=backend)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).double()
    wrapped = way(model, group, DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def backward(x):
        wrapped(x).square().mean().backward()

    step = compiled(backward) if whole_step else backward
    for number in range(STEPS):
        optimizer.zero_grad()
        seed = number if way is parallel_tensors else 10 * number + rank
        step(torch.randn(5, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        optimizer.step()
    return weights(model)


def all_ways(path):
    dist, rank, _ = begin(path, "ddl")
    for way in WAYS:
        torch._dynamo.reset()
        torch.testing.assert_close(
            trained(way, rank, "ddl"), trained(way, rank, "gloo"), msg=lambda m, w=way: f"{w}: {m}"
        )
    torch._dynamo.reset()
    own = trained(ddp, rank, "ddl", whole_step=True)
    torch.testing.assert_close(own, trained(ddp, rank, "gloo", whole_step=True))
    dist.destroy_process_group()


def test_all_ways_of_gloo(tmp_path) -> None:
    ranks.run(2, all_ways, str(tmp_path / "store"), initialise=False, env={"OMP_NUM_THREADS": "1"})


def uneven(path):
    """A rank with fewer batches shadows the others' collectives, compiled or not."""
    from torch.distributed.algorithms.join import Join

    dist, rank, _ = begin(path, "ddl")
    results = []
    for backend in ("ddl", "gloo"):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2).double()
        wrapped = ddp(model, dist.new_group([0, 1], backend=backend), None)
        function, optimizer = compiled(wrapped), torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([wrapped]):
            for number in range(2 + rank):
                optimizer.zero_grad()
                function(torch.full((4, 3), 1.0 + number + rank, dtype=torch.float64)).square().mean().backward()
                optimizer.step()
        results.append(weights(model))
    torch.testing.assert_close(*results)
    dist.destroy_process_group()


def test_uneven_batches(tmp_path) -> None:
    ranks.run(2, uneven, str(tmp_path / "store"), initialise=False)


def optimized():
    """``DistributedOptimizer`` with a compiled model, without and with compiled autograd, against one that is not."""
    import ddl_torch as ddl

    results = []
    for wrap, autograd in ((lambda m: m, False), (compiled, False), (compiled, True)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters(), tune_allocator=False)
        function = wrap(model)

        def backward(x, function=function):
            function(x).square().mean().backward()

        with torch._dynamo.config.patch(compiled_autograd=autograd):
            step = compiled(backward) if autograd else backward
            for number in range(STEPS):
                optimizer.zero_grad()
                step(torch.full((4, 3), 1.0 + number + ddl.rank(), dtype=torch.float64))
                optimizer.step()
        results.append(weights(model))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_a_distributed_optimizer() -> None:
    ranks.run(2, optimized)
